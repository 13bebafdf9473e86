"""Adapters through which training frameworks use the engine: accelerate, deepspeed, lightning, megatron, torchtitan and
transformers. Each adapter is a module of its own, and only that module imports its framework. docs/frameworks.md shows
how to use them."""
