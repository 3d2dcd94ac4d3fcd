"""Tools that a worker knows without Redis, in the place of its `ToolCache`."""

from collections.abc import Callable, Collection, Hashable

from toolfleet_registry.contracts import ModuleManifest, ToolDefinition
from toolfleet_registry.manifests.manifest_cache import SeenTool, ToolOverride, seen_tools


class FewTools:
    """Knows these tools, and `later` ones once it looks; `lacking` are those that their modules surely do not offer."""

    def __init__(
        self,
        *tools: ToolDefinition,
        later: Collection[ToolDefinition] = (),
        is_old: bool = False,
        modules: Collection[str] = (),
        on_look: Callable[[], object] = lambda: None,
    ) -> None:
        self.tools = {tool.name: tool for tool in tools}
        self.later = {tool.name: tool for tool in later}
        self.is_old = is_old
        self.modules, self.on_look = modules, on_look
        self.verdicts = dict[str, ToolOverride]()
        self.lacking = frozenset[str]()
        self.approves = True
        self.looks = 0
        self.asked_anew = list[str]()

    def find(self, tool_name: str) -> SeenTool | None:
        if (tool := self.tools.get(tool_name)) is None:
            return None
        manifest = ModuleManifest(module_name=tool_name.partition(".")[0], tools=[tool])
        return next(iter(seen_tools(manifest, self.verdicts)))

    def decided(self, key: Hashable) -> None:
        return None

    def keep(self, key: Hashable, ticket: object) -> None:
        return

    def retries_undeclared(self, module: str) -> bool:
        return not module

    def serves(self, module: str) -> bool:
        return module in self.modules

    def lacks(self, tool_name: str) -> bool:
        return tool_name in self.lacking

    def inquire(self, tool_name: str) -> float:
        return 0.25

    async def is_approved(self, tool: ToolDefinition) -> bool:
        return self.approves

    async def refresh(self, *, reads_all: bool = True) -> None:
        self.looks += 1
        self.is_old = False
        self.tools |= self.later
        self.on_look()

    async def prepare(self) -> None:
        return

    async def ensure_modules(self, modules: Collection[str], *, is_new: bool) -> None:
        self.asked_anew += modules if is_new else []

    async def reload_modules(self, modules: Collection[str]) -> None:
        return
