"""Adapters through which training frameworks use the engine: accelerate, deepspeed, lightning, megatron, torchtitan and
transformers. Each adapter is a module of its own, and only that module imports its framework. docs/integrations.md and
docs/integrations_training_systems.md show how to use them."""
