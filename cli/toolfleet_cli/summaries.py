"""Lists what the help of `toolfleet` says of each command and group, in its order.

They stand there a second time, so that the help loads none of the modules that they are from. A test compares them.
"""

from collections.abc import Mapping

SUMMARIES: Mapping[str, str] = {
    "up": "Run a whole fleet here, in the foreground: Redis, workers, beat, Flower, a gateway; in a clone the example modules, too.",
    "demo": "Play an agent's day on a fleet of its own, which is gone afterwards. Runs from a clone of the project.",
    "worker": "Run calls, until SIGTERM: then finish those that run. Prints `toolfleet worker ready lane=…` when it is.",
    "beat": "Send the fleet's own regular tasks: the look at every module. A fleet needs one.",
    "flower": "Show calls, queues and workers in the browser. Takes Flower's own `FLOWER_…` variables as well.",
    "autoscale": "Run as many workers of a lane as its running and waiting calls need, until SIGTERM: then they finish their calls.",
    "gateway": "Serve the fleet over HTTP, until SIGTERM: then what is under way ends. Prints its URL when it is ready.",
    "mcp": "Serve the fleet's tools to an MCP client over standard input and output, until that ends. For a client's configuration.",
    "logs": "Print what a process of `toolfleet up` has logged, also when it has ended; without a name, which there are.",
    "restart": "Restart a process of the `toolfleet up` here: it ends in good order, a worker's calls finish, and starts anew.",
    "config": "Show what is set here, and where: in the environment, in a line of `toolfleet.toml`, or by a running `up`.",
    "status": "Show workers, lanes, queues, modules in trouble, dead letters, jobs and wake-ups. Asks Redis only, for 5 s at most.",
    "doctor": "Examine the fleet: send a canary through each queue, and look at Redis, workers, clocks, keys, secrets and settings.",
    "capacity": "Say how many agents, workers and Redis servers a load needs, by measured costs. Asks no fleet.",
    "redis-cli": "Open redis-cli at the fleet's Redis, with what follows as its arguments.",
    "call": "Run a tool and print its result. Exit code 1 if the call did not succeed.",
    "why": "Say which rules have a say in a call, whether each lets it pass, and where it stands. Calls nothing. Exit code 1 if it may not be made.",
    "agents": "The profiles of agents: which tools each may use, and what stands around its calls.",
    "approvals": "Calls that wait for people: look at them, approve or reject them.",
    "audit": "Who called or changed what, what was decided, and how it ended.",
    "create": "Begin something new.",
    "dead": "Calls whose end nobody can know, wake-ups and webhooks that nobody accepted: look at them, try them anew, drop them.",
    "host": "Serve as a module what was not written as one.",
    "jobs": "Long work that is polled, of all users: look at it, end it.",
    "keys": "The API keys of programs that use the fleet over HTTP.",
    "modules": "The modules: which there are, and whether they answer.",
    "queues": "The queues: how each is, and pausing, draining and resuming them.",
    "tools": "The tools: which there are, what they take, and which are in effect.",
    "wakes": "Wake-ups of jobs and webhooks that wait to be accepted: look at them, have them sent now, drop them.",
}
