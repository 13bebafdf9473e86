"""Adapters, which let training frameworks use the engine: accelerate, deepspeed, lightning, megatron, torchtitan and
transformers. Each is a module of its own that imports its framework. docs/integrations.md and
docs/integrations_training_systems.md show how to use them."""
