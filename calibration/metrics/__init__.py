"""What was seen of the requests becomes a measurement with a verdict. Start with `measurement.measurement`."""
