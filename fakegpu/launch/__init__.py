"""What ./fgpu does around a command: environment, private coordinator, child process, last words.

`environment` makes the command's variables, `process` runs it and ends what it leaves behind, `job` puts both
together with a coordinator. Imports nothing by itself, so that `fgpu true` stays quick.
"""
