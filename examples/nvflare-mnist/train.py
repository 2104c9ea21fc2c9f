"""A client's training, with NVFlare's Client API: nothing in it is fedcohort's."""

import nvflare.client as flare
import torch
from mnist_net import Net, batches_of
from torch import nn


def main() -> None:
    """Train whenever the server asks for it."""
    flare.init()
    net, batches = Net(), batches_of(flare.get_site_name())
    while flare.is_running():
        received = flare.receive()
        net.load_state_dict(received.params)
        optimiser = torch.optim.SGD(net.parameters(), lr=0.05)
        total = 0.0
        for x, y in batches:
            loss = nn.functional.cross_entropy(net(x), y)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            total += float(loss.detach())
        flare.send(
            flare.FLModel(params=net.state_dict(), metrics={"train_loss": total / len(batches)})
        )


if __name__ == "__main__":
    main()
