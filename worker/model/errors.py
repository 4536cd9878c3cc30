"""What is wrong with a model folder. Either error stops the start."""


class ModelError(ValueError):
    """The model folder cannot be served; the message names what, where and what to do."""


class ConfigError(ModelError):
    """config.json is damaged or asks for what is not supported."""


class WeightsError(ModelError):
    """A weight file is missing, damaged, or does not hold the tensors that the config asks for."""
