"""pytest plugin: `@pytest.mark.fakegpu(world_size=4)` runs a test's body on N ranks."""
