# SPDX-License-Identifier: Apache-2.0
"""Table T1: two tiers of 8 planes against three tiers of one, of the same switches.

A switch of 51.2 Tb/s is 512 ports of 100 Gb/s or 64 of 800 Gb/s. Of the latter a three-tier network
ends at 65,536 NICs; what is compared is counted for each host.
"""

from __future__ import annotations

from mrc import sim


def lines() -> list[str]:
    """The table, then what two tiers need of what three do."""
    columns = {
        "2 tiers 8 planes": sim.paper(),
        "3 tiers 1 plane": sim.three_tier(pods=64, t0=32, hosts=32, t1=32, cores=1024, rate=800e9),
    }
    summaries = [each.summary() for each in columns.values()]
    table = [f"{'':<24}" + "".join(f"{name:>18}" for name in columns)]
    for row in summaries[0]:
        cells = "".join(f"{each[row]:>18,.6g}" for each in summaries)
        table.append(f"{row:<24}{cells}")
    table += [
        f"{row:<24}{summaries[0][row] / summaries[1][row]:>18.4f} of three tiers"
        for row in ("optics_per_host", "switch_ports_per_host")
    ]
    return table


if __name__ == "__main__":
    print("\n".join(lines()))
