"""Child of conftest.py: runs every `case_` function of a file and writes {name: traceback or ""} as JSON."""

import importlib.util
import json
import sys
import traceback
import warnings


def main(file: str, result: str) -> None:
    warnings.simplefilter("ignore")
    spec = importlib.util.spec_from_file_location("cases", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    outcomes = {}
    for name, function in list(vars(module).items()):
        if not name.startswith("case_"):
            continue
        try:
            function()
            outcomes[name] = ""
        except Exception:
            outcomes[name] = traceback.format_exc()
    with open(result, "w") as out:
        json.dump(outcomes, out)


main(*sys.argv[1:])
