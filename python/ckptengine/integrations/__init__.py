"""Adapters, which let training frameworks use the engine: `accelerate`, `transformers`, `lightning`. Each is a module
of its own that imports its framework. docs/integrations.md shows their use."""
