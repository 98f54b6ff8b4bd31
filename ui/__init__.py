"""What the browser shows: the scenario form, the pages, the charts, the link."""
