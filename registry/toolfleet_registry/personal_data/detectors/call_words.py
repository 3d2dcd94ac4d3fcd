"""Recognises words that announce a phone number, in ten languages: "mobile", "Tel.", "llámame", and such names of members."""

from toolfleet_registry.linear_patterns import compiled
from toolfleet_registry.personal_data.detectors.scan import EXTRA
from toolfleet_registry.personal_data.searched_texts import SearchedTexts


class CallWords:
    """Words in front of digits that make them a phone number."""

    def __init__(self) -> None:
        self._anywhere = compiled(_WORDS.encode(), extra=EXTRA)
        self._before = compiled(f"{_WORDS}[^0-9!?\u3002\uff01\uff1f]{{0,20}}$".encode(), extra=EXTRA)

    def are_in(self, texts: SearchedTexts) -> bool:
        """Return whether there is such a word anywhere: in most texts there is none, and digits need no second check."""
        return texts.once("call_words", lambda texts: self._anywhere.search(_bytes(texts.plain)) is not None)

    def stand_before(self, texts: SearchedTexts, start: int) -> bool:
        """Return whether there is such a word before this place, in the same sentence and at most 20 characters away; or in the member's name."""
        return self.are_in(texts) and self._before.search(_bytes(texts.before(start))) is not None


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "replace")


# In English, German, French, Spanish, Polish, Russian, Japanese, Chinese, Italian and Portuguese.
_WORDS = (
    r"(?i)(?:(?:^|\PL)(?:tel|mob|cell|call|fax|dial|sms|ruf|t[ée]l|kom|тел|моб)\PL|phone|mobile|cell|call|whatsapp|telefon|handy|mobil"
    r"|anruf|rufnummer|t[ée]l[ée]phone|portable|appel|joignable|tel[ée]fono|m[óo]vil|celular|ll[áa]ma|komórk|zadzwoń|dzwoń"
    r"|телефон|мобильн|звони|電話|携帯|电话|手机|致电|cellulare|telefone|telem[óo]vel)"
)
