"""`uvicorn modules.deployer.main:app` starts the module."""

from modules.deployer.manifest import module_for
from modules.deployer.settings import DeployerSettings
from toolfleet.sdk import hide_process

hide_process()
app = module_for(DeployerSettings()).app
