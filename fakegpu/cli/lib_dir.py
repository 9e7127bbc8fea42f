"""Print the folder of the native libraries (libnccl.so.2 and the CUDA libraries)."""

from fakegpu.cli._parser import Parser, add_settings, settings_of


def main(argv: list[str] | None = None) -> int:
    """Print the folder; MissingLibrary if the libraries are not in it."""
    from fakegpu.launch.environment import lib_dir, preload_paths

    parser = Parser("fgpu lib-dir", description=__doc__)
    add_settings(parser, ["lib_dir"])
    settings = settings_of(parser.parse_args(argv))
    preload_paths(settings)
    print(lib_dir(settings))
    return 0
