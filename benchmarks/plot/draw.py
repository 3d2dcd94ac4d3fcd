"""The results as a picture: reads panels of bars as JSON, writes a PNG.

`python draw.py OUT.png < panels.json`, in the plot's environment. Bars with a `low` and a `high` get whiskers.
"""

import json
import sys
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.patches import Patch

_COLOURS = {"ours": "#1b7f5c", "peer": "#8a97a8", "direct": "#c9a227", "ceiling": "#d8dde4"}
_LEGEND = {
    "ours": "this fleet",
    "peer": "other queues",
    "direct": "no queue",
    "ceiling": "bare Redis lists, no guarantees",
}
_INCH_A_BAR = 0.27
_FEWEST_BARS = 8  # with less, a bar is as thick as a wall


def draw(panels: list[dict[str, Any]], out: str) -> None:
    """One panel beside the other, two in a row."""
    rows = (len(panels) + 1) // 2
    height = max(len(panel["bars"]) for panel in panels) * _INCH_A_BAR + 0.9
    figure, axes = plt.subplots(rows, 2, figsize=(13, rows * height), squeeze=False)
    for axis, panel in zip(axes.flat, panels, strict=False):
        _draw_panel(axis, panel)
    for axis in axes.flat[len(panels) :]:
        axis.axis("off")
    patches = [Patch(color=_COLOURS[kind], label=label) for kind, label in _LEGEND.items()]
    figure.legend(handles=patches, loc="lower center", ncols=len(patches), frameon=False)
    figure.tight_layout(rect=(0, 0.03, 1, 1))
    figure.savefig(out, dpi=110)


def _draw_panel(axis: Any, panel: dict[str, Any]) -> None:
    bars = list(reversed(panel["bars"]))
    values = [bar["value"] for bar in bars]
    whiskers = [[bar["value"] - bar["low"] for bar in bars], [bar["high"] - bar["value"] for bar in bars]]
    colours = [_COLOURS[bar["kind"]] for bar in bars]
    drawn = axis.barh([bar["label"] for bar in bars], values, color=colours, xerr=whiskers, ecolor="#555555")
    axis.bar_label(drawn, labels=[f"{value:,.3g}" if value < 100 else f"{value:,.0f}" for value in values], padding=4)
    axis.set_title(panel["title"], loc="left", fontsize=11)
    axis.set_xscale("log" if panel["is_log"] else "linear")
    axis.margins(x=0.18)
    axis.set_ylim(len(bars) - 0.4 - max(len(bars), _FEWEST_BARS), len(bars) - 0.4)
    axis.spines[["top", "right"]].set_visible(False)
    axis.tick_params(axis="y", length=0, labelsize=8)


if __name__ == "__main__":
    draw(json.load(sys.stdin), sys.argv[1])
