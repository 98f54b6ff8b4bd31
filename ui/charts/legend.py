"""Where the names of series stand when a chart has several: in a row above the plot, at its right end."""

from __future__ import annotations

import plotly.graph_objects as go


def legend_above(figure: go.Figure, order: str = "normal") -> None:
    """Name the series in one row that covers no data; `order` "reversed" where the last one was drawn first."""
    row = {"orientation": "h", "x": 1, "xanchor": "right", "y": 1, "yanchor": "bottom", "traceorder": order}
    figure.update_layout(showlegend=True, legend=row)
