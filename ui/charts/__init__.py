"""The charts of the pages: values in, a plotly figure and the sentence that it shows out."""
