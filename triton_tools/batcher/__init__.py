"""A simulation of Triton's dynamic and sequence batchers as a config.pbtxt sets them up, and a tuner."""
