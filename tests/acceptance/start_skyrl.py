"""Starts SkyRL's Tinker server on 127.0.0.1 with Python 3.11 and without uv; it runs in that server's environment.

python start_skyrl.py --backend jax --base-model FOLDER --port N --checkpoints-base FOLDER --database-url sqlite:///FILE
The server starts the process that computes with this file too: python start_skyrl.py engine ...
"""

import argparse
import sys
import typing

import typing_extensions

typing.TypedDict = typing_extensions.TypedDict  # pydantic refuses typing's, which the server uses, before Python 3.12


def serve() -> None:
    import uvicorn
    from skyrl.tinker import api
    from skyrl.tinker.config import EngineConfig, add_model, config_to_argv

    api._build_uv_run_cmd_engine = lambda _, config: [sys.executable, __file__, "engine", *config_to_argv(config)]
    parser = argparse.ArgumentParser()
    add_model(parser, EngineConfig)
    parser.add_argument("--port", type=int, required=True)
    arguments = vars(parser.parse_args())
    fields = {name: value for name, value in arguments.items() if name in EngineConfig.model_fields}
    api.app.state.engine_config = EngineConfig.model_validate(fields)
    uvicorn.run(api.app, host="127.0.0.1", port=arguments["port"], log_level="warning")


if __name__ == "__main__":
    if sys.argv[1:2] == ["engine"]:
        del sys.argv[1]
        import skyrl.tinker.engine

        skyrl.tinker.engine.main()
    else:
        serve()
