"""A browser without JavaScript: it keeps cookies, and sends forms as they stand in pages."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from html.parser import HTMLParser

import httpx

from support.gateways.keyed_gateway import KeyedGateway
from support.waiting import PATIENCE_SECONDS


@dataclass
class Form:
    """A form of a page: where it goes, and what its fields have."""

    action: str
    method: str
    fields: dict[str, str] = field(default_factory=dict)


class Page(HTMLParser):
    """What a page has: its forms, links and text."""

    def __init__(self, answer: httpx.Response) -> None:
        super().__init__()
        self.status, self.html = answer.status_code, answer.text
        self.forms, self.links, self.text, self.tags = list[Form](), list[str](), "", list[str]()
        self.feed(self.html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        had = {name: value or "" for name, value in attrs}
        self.tags.append(tag)
        if tag == "form":
            self.forms.append(Form(had["action"], had.get("method", "get")))
        elif tag in {"input", "textarea"} and self.forms and "name" in had:
            self.forms[-1].fields[had["name"]] = had.get("value", "")
        elif tag == "a":
            self.links.append(had.get("href", ""))

    def handle_data(self, data: str) -> None:
        self.text += data

    def form(self, action: str, /, **fields: str) -> Form:
        """The one that goes there, with these fields."""
        found = (form for form in self.forms if form.action.endswith(action))
        fitting = [form for form in found if fields.items() <= form.fields.items()]
        assert fitting, [(form.action, form.fields) for form in self.forms]
        return fitting[0]


@dataclass(frozen=True)
class ConsoleBrowser:
    """Somebody at `/console`."""

    client: httpx.AsyncClient

    async def get(self, below: str = "/", **options: object) -> Page:
        return Page(await self.client.get(f"/console{below}", **options))  # type: ignore[arg-type] # httpx's own

    async def send(self, form: Form, /, **fields: str) -> Page:
        """Send it, and see the page that follows."""
        return Page(await self.client.post(form.action, data={**form.fields, **fields}, follow_redirects=True))

    async def post(self, below: str, fields: Mapping[str, str], **options: object) -> httpx.Response:
        """Send fields that stand in no form."""
        return await self.client.post(f"/console{below}", data=dict(fields), **options)  # type: ignore[arg-type]

    async def csrf(self) -> str:
        """What marks the session's forms."""
        page = await self.get("/approvals")
        return page.form("/theme").fields["csrf"]


@asynccontextmanager
async def browsing(gateway: KeyedGateway, who: str | None, *, key: str | None = None) -> AsyncGenerator[ConsoleBrowser]:
    """A browser; of one of `PEOPLE` who has signed in, or of nobody."""
    async with httpx.AsyncClient(base_url=gateway.url, timeout=3 * PATIENCE_SECONDS, trust_env=False) as client:
        if who is not None:
            answer = await client.post("/console/login", data={"credential": key or gateway.keys[who].text})
            assert answer.status_code == 303, answer.text
        yield ConsoleBrowser(client)
