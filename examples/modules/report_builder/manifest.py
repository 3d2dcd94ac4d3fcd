"""What `report_builder` offers. Its calls belong in the slow lane: name the module in `TOOLFLEET_SLOW_MODULES`."""

from toolfleet_registry.contracts import ModuleManifest, ToolDefinition, ToolParameter

_PARAMETERS = [
    ToolParameter(name="title", type="string", description="The report's title."),
    ToolParameter(
        name="seconds",
        type="number",
        description="How long to take over it, at least; 5 by default, 600 at most.",
        required=False,
    ),
]

BUILD_REPORT = ToolDefinition(
    name="report_builder.build_report",
    description="Build a report in Markdown on this project's documentation and on the user's files. Takes its time.",
    parameters=_PARAMETERS,
    required_permission="guest",
    effect="read",
)

QUICK_REPORT = ToolDefinition(
    name="report_builder.quick_report",
    description="The same report, for those who cannot wait: it has to be done within 2 s.",
    parameters=_PARAMETERS,
    required_permission="guest",
    effect="read",
    timeout_seconds=2,
)

MANIFEST = ModuleManifest(
    module_name="report_builder",
    description="Builds reports, slowly.",
    tools=[BUILD_REPORT, QUICK_REPORT],
)
