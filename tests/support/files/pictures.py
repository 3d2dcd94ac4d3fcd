"""Small files that are what they say: images, a sound, a document."""

from base64 import b64decode, b64encode

PNG = b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==")
JPEG = b"\xff\xd8\xff\xe0\x00\x10JFIF\x00"
WAV = b"RIFF\x24\x00\x00\x00WAVEfmt "
PDF = b"%PDF-1.4\n%%EOF\n"


def base64(data: bytes) -> str:
    """As a model sends it."""
    return b64encode(data).decode()
