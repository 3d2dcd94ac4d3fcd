"""`python -m docsite [PAGE …]`: writes the generated pages anew, and names those that have changed."""

import sys

from docsite.pages import DOCS, generated

if __name__ == "__main__":
    for name, text in generated().items():
        page = DOCS / name
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
        if not page.exists() or page.read_text() != text:
            page.write_text(text)
            sys.stdout.write(f"{page.resolve().relative_to(DOCS.parent)}\n")
