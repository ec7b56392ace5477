"""The scheduler extender: filter decides and holds, prioritize scores, bind binds, preempt checks."""
