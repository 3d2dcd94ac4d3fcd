"""A coding agent that needs no model: it builds a small web site from a prompt, step by step. A program of its own.

`scripted_agent.py PROMPT_FILE` builds in the folder that it starts in. A line of the prompt may tell it what to do for a
test: `agent: fail`, `agent: hang`, `agent: seconds 0.1` (how long it takes in all).
"""

import html
import re
import sys
import time
from pathlib import Path

SECONDS = 3.0
_DIRECTIVE = re.compile(r"(?im)^\s*agent:\s*(\w+)(?:\s+([\d.]+))?\s*$")
_MAX_TITLE = 60

_PAGE = """<!doctype html>
<html lang="en">
<head>
  <meta charset="utf-8">
  <meta name="viewport" content="width=device-width, initial-scale=1">
  <title>{title}</title>
  <link rel="stylesheet" href="style.css">
</head>
<body>
  <main>
    <h1>{title}</h1>
    {paragraphs}
    <p><a href="about.html">About this site</a></p>
  </main>
</body>
</html>
"""
_STYLE = "body { font: 1.1rem/1.6 system-ui, sans-serif; margin: 4rem auto; max-width: 40rem; padding: 0 1rem; }\n"


def main() -> None:
    """Plan, write, check; each step takes its share of the time."""
    prompt = Path(sys.argv[1]).read_text("utf-8")
    directives = {word.lower(): number for word, number in _DIRECTIVE.findall(prompt)}
    pause = float(directives.get("seconds") or SECONDS) / 4
    wanted = _DIRECTIVE.sub("", prompt).strip() or "A page"
    title = wanted.splitlines()[0].strip(" .#")[:_MAX_TITLE]
    print(f"Reading the task: {title}")
    time.sleep(pause)
    if "hang" in directives:
        print("Thinking about it for a long time")
        time.sleep(86_400)
    print("Plan: a page, its style, and a page about it, in dist/")
    time.sleep(pause)
    if "fail" in directives:
        sys.exit("I cannot do this: the task says so.")
    _build(Path("dist"), title, wanted)
    time.sleep(pause)
    _check(Path("dist"))
    time.sleep(pause)
    print("Done: the site is in dist/, ready to be deployed.")


def _build(site: Path, title: str, wanted: str) -> None:
    site.mkdir(exist_ok=True)
    paragraphs = "\n    ".join(f"<p>{html.escape(line)}</p>" for line in wanted.splitlines() if line.strip())
    pages = {
        "index.html": _PAGE.format(title=html.escape(title), paragraphs=paragraphs),
        "about.html": _PAGE.format(title="About", paragraphs="<p>A scripted agent has built this site.</p>"),
        "style.css": _STYLE,
    }
    for name, text in pages.items():
        (site / name).write_text(text, "utf-8")
        print(f"Wrote dist/{name} ({len(text.encode())} bytes)")


def _check(site: Path) -> None:
    for page in site.glob("*.html"):
        for target in re.findall(r'href="([^":]+)"', page.read_text("utf-8")):
            if not (site / target).is_file():
                sys.exit(f"{page.name} leads to {target}, which is missing.")
    print("Checked the pages: every link leads somewhere")


if __name__ == "__main__":
    main()
