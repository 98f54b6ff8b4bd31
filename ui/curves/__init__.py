"""The views of the Curves page, a module each: numbers from ui.curving, charts from ui.charts."""
