"""Every method by name: a class, the tuner it comes with, a sentence. The rest of it is in recipes/NAME.toml."""

from .capt import CAPT
from .central import Central
from .creff import CReFF
from .fedavg import FedAvg
from .fedclip import FedCLIP
from .fedcopl import FedCoPL
from .fedloge import FedLoGe
from .fedotp import FedOTP
from .fedpgp import FedPGP
from .fedprox import FedProx
from .fedpurel import FedPuReL
from .fedsa_lora import FedSALora
from .fedtpg import FedTPG
from .kgcoop import KgCoOp
from .local import LocalOnly
from .pfedprompt import PFedPrompt
from .promptfolio import PromptFolio
from .recipe import Entry, read_entry
from .released.capt import ReleasedCAPT
from .released.fedavg import ReleasedFedAvg
from .released.fedcopl import ReleasedFedCoPL
from .released.fedpurel import ReleasedFedPuReL
from .rucr import RUCR
from .scaffold import Scaffold
from .tailor import Tailor
from .zeroshot import ZeroShot

METHODS: dict[str, Entry] = {
    name: read_entry(name, *what)
    for name, what in {
        "zeroshot": (ZeroShot, "none", "CLIP as it is, a hand-written sentence a class"),
        "fedavg": (FedAvg, "text_prompt", "average what clients reach"),
        "fedprox": (FedProx, "text_prompt", "FedAvg with a pull to the start"),
        "capt": (CAPT, "coupled+class_prompt", "general and class-aware prompts, two clusterings of clients, a bandit"),
        "fedcopl": (FedCoPL, "text_prompt+visual_prompt", "no labels: joint pseudo-labels, shared visual prompts"),
        "fedpurel": (FedPuReL, "text_prompt", "gradients purified against zero-shot CLIP, then a personal residual"),
        "tailor": (Tailor, "head", "one model for all, each client's own class frequencies on top"),
        "promptfl": (FedAvg, "text_prompt", "FedAvg of one text context"),
        "promptprox": (FedProx, "text_prompt", "FedProx of one text context"),
        "fedtpg": (FedTPG, "prompt_generator", "a network, learned together, writes the context from the class names"),
        "fedotp": (FedOTP, "text_prompt", "a global and a local context split an image's patches by optimal transport"),
        "promptfolio": (PromptFolio, "text_prompt", "a global and a local text context, their sentences mixed"),
        "fedpgp": (FedPGP, "text_prompt", "a shared context, a personal low-rank change of it, a contrast of the two"),
        "pfedprompt": (PFedPrompt, "text_prompt", "shared context, personal attention (approximate: no public code)"),
        "cocoop": (FedAvg, "meta_prompt", "a text context that a small network moves for each image"),
        "kgcoop": (KgCoOp, "text_prompt", "a text context whose sentences stay near the hand-written ones"),
        "maple": (FedAvg, "coupled", "deep text prompts, projected into the image tower"),
        "fedclip": (FedCLIP, "adapter", "an attention gate on image features"),
        "clip-lora": (FedAvg, "lora", "FedAvg of low-rank deltas on both towers"),
        "fedsa-lora": (FedSALora, "lora", "of low-rank deltas B A, the A shared and the B kept"),
        "local": (LocalOnly, "text_prompt", "each client trains alone"),
        "central": (Central, "text_prompt", "one model on everyone's data, not federated"),
        "linear-probe": (FedAvg, "head", "FedAvg of a linear classifier on features"),
        "scaffold": (Scaffold, "text_prompt", "control variates against clients' drift"),
        "scratch-fedavg": (FedAvg, "resnet", "FedAvg of a ResNet, without CLIP"),
        "fedgrab": (FedAvg, "resnet", "FedAvg of a ResNet, gradients balanced by class; for others rebalance=fedgrab"),
        "creff": (CReFF, "resnet", "FedAvg, its classifier re-trained on features made from class gradients"),
        "rucr": (RUCR, "resnet", "features pulled to shared prototypes, then a head re-trained on balanced mixtures"),
        "fedloge": (FedLoGe, "resnet", "trained through a fixed sparse frame; shared and personal heads realigned"),
        "capt-released": (ReleasedCAPT, "coupled+class_prompt", "CAPT as released: raw prompts, clients in sequence"),
        "fedcopl-released": (ReleasedFedCoPL, "text_prompt+visual_prompt", "FedCoPL as released: carried momentum"),
        "fedpurel-released": (ReleasedFedPuReL, "text_prompt", "FedPuReL as released: a personal pass in every round"),
        "fedavg-released": (ReleasedFedAvg, "text_prompt", "FedAvg with carried momentum, as PromptFL's code does"),
    }.items()
}
