"""All planted bugs. A simulator that cannot see a planted bug proves nothing."""

from __future__ import annotations

from tests.simulation import bugs_claim, bugs_money
from tests.simulation.planting import Bug

BUGS: list[Bug] = [*bugs_claim.BUGS, *bugs_money.BUGS]
