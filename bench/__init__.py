"""How fast Belljar is on this machine: every target of the project measured against a yardstick of the same run.

Times mean little on a busy or emulated host, so what is judged are ratios: yardstick and subject take turns, sample by sample.
"""
