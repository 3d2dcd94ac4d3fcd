"""`uvicorn modules.deployer.main:app` starts the module."""

from modules.deployer.manifest import module_for
from modules.deployer.settings import DeployerSettings

app = module_for(DeployerSettings()).app
