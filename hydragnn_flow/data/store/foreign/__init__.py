"""Files that HydraGNN wrote: they carry no checksums, and are looked through before use."""

from hydragnn_flow.data.store.foreign.survey import KeySurvey, SplitSurvey, Survey, survey

__all__ = ["KeySurvey", "SplitSurvey", "Survey", "survey"]
