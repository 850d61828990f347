"""FedCoPL: no labels at all. Cooperative pseudo-labels, visual prompts that are averaged, text prompts that stay.

Guo et al., Cooperative Pseudo Labeling for Unsupervised Federated Classification, ICCV 2025.
Notation: P^v → visual.ctx, P^t → text.ctx, D~_k → me.data, as labelers/copl.py labels it (Eqs. 2–3), n~_k → weight.
Departures, as released and all of them in docs/methods/fedcopl.md: n~_k counts what client k really selected, and the
rate falls along a cosine from one labeling to the next.
"""

from pydantic import Field

from ..core import GLOBAL, LOCAL, Method, Params, Scope, resolve


class FedCoPL(Method):
    share = {"visual.*": GLOBAL, "text.*": LOCAL}
    neutral = {"share_text": True}
    by_picture = True

    share_visual: bool = Field(True, description="average the visual prompts, Eq. 4; false: they stay (Table 6)")
    share_text: bool = Field(False, description="average the text prompts too; false: they stay (Table 6)")

    def scopes(self, theta: Params) -> dict[str, Scope]:
        """Eq. 5 minimises over one P^v and K times P^t; Eq. 4, the average by n~_k, is FedAvg's own."""
        visual, text = (GLOBAL if shared else LOCAL for shared in (self.share_visual, self.share_text))
        return resolve({"visual.*": visual, "text.*": text}, theta)
