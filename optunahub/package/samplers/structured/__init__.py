from botorch_structured.integrations.optuna import StructuredSampler

__all__ = ["StructuredSampler"]
