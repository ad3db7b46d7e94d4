"""What macOS's tools say, and what they leave out."""

from pathlib import Path

import pytest

from mlrun.agent.telemetry.apple import (
    parse_battery,
    parse_ioreg,
    parse_low_power,
    parse_macmon,
    parse_thermal,
)

SAMPLES = Path(__file__).parents[3] / "shared" / "mac-samples"

M_TEXT = b"""+-o AGXAcceleratorG14X  <class AGXAcceleratorG14X, id 0x100000460, registered, matched>
    {
      "PerformanceStatistics" = {"In use system memory (driver)"=0,"Tiler Utilization %"=0,\
"Device Utilization %"=97,"Alloc system memory"=900,"In use system memory"=700}
      "model" = "Apple M2 Pro"
      "AGXParameterBufferMaxSize" = 18446744071562067968
      "IOReportLegend" = ({"IOReportChannels"=((1,6442450945,"In use system memory"))})
    }
"""
IN_A_TREE = b"""  | |   "model" = "Apple M4 Pro"
  | |   "PerformanceStatistics" = {"Device Utilization %"=27,"In use system memory"=650}
"""
INTEL_MAC = b"""+-o IntelAccelerator  <class IntelAccelerator, id 0x100000412>
    {
      "PerformanceStatisticsAccum" = {"textureCount"=1710,"Device Utilization %"=5}
    }

+-o AMDRadeonX4000_AMDGraphicsAccelerator  <class AMDRadeonX4000, id 0x100000413>
    {
      "PerformanceStatistics" = {"GPU Activity(%)"=2,"Total Power(W)"=15,"vramUsedBytes"=300}
    }
"""


def plist(model: str, statistics: str) -> bytes:
    return f"""<?xml version="1.0" encoding="UTF-8"?><plist version="1.0"><array><dict>{model}
        <key>PerformanceStatistics</key><dict>{statistics}</dict></dict></array></plist>""".encode()


def figures(name: str, value: object) -> str:
    return f"<key>{name}</key><integer>{value}</integer>"


@pytest.mark.parametrize(
    ("output", "use", "memory", "chip"),
    [
        (M_TEXT, 97, 700, "Apple M2 Pro"),
        (IN_A_TREE, 27, 650, "Apple M4 Pro"),
        (INTEL_MAC, 2, 300, None),
        (b"", None, None, None),
        (b"ioreg: error\n", None, None, None),
        (plist("", figures("Device Utilization %", 14)), 14, None, None),
        (plist("<key>model</key><string>Apple M3</string>", ""), None, None, "Apple M3"),
        (plist("<key>model</key><data>QXBwbGUgTTMA</data>", ""), None, None, "Apple M3"),
        (plist("", figures("Device Utilization %", 137)), None, None, None),
        (plist("", figures("In use system memory", 18446744071562067968)), None, None, None),
        (plist("", figures("In use system memory (driver)", 0)), None, None, None),
        (plist("", "<key>Device Utilization %</key><string>14</string>"), None, None, None),
        (plist("", figures("Device Utilization %", 14))[:-40], None, None, None),
    ],
)
def test_ioreg(output, use, memory, chip):
    told = parse_ioreg(output)
    assert (told.gpu_percent, told.gpu_memory_bytes, told.chip) == (use, memory, chip)


def test_an_amd_gpu_tells_its_power():
    assert parse_ioreg(INTEL_MAC).gpu_watts == 15


@pytest.mark.parametrize(
    ("output", "state"),
    [
        (b"com.apple.system.thermalpressurelevel 0\n", "nominal"),
        (b"com.apple.system.thermalpressurelevel 4\n", "sleeping"),
        (b"com.apple.system.thermalpressurelevel 7\n", None),
        (b"com.apple.system.thermalpressurelevel: Failed with code 9\n", None),
        (b"", None),
    ],
)
def test_thermal(output, state):
    assert parse_thermal(output).thermal == state


@pytest.mark.parametrize(
    ("output", "power", "charge"),
    [
        (b"Now drawing from 'AC Power'\n", "mains", None),
        (b"No batteries available.\n", None, None),
        (
            b"Now drawing from 'Battery Power'\n -InternalBattery-0 (id=1)\t87%; discharging; 0:52\n",
            "battery",
            87,
        ),
        (b"", None, None),
    ],
)
def test_battery(output, power, charge):
    told = parse_battery(output)
    assert (told.power, told.battery_percent) == (power, charge)


@pytest.mark.parametrize(
    ("output", "on"),
    [(b" lowpowermode         1\n womp 1\n", True), (b" lowpowermode 0\n", False), (b" sleep 1\n", None)],
)
def test_low_power(output, on):
    assert parse_low_power(output).low_power is on


@pytest.mark.parametrize(
    ("line", "use", "power"),
    [
        (b'{"gpu_active_ratio": 0.09, "gpu_scaled_ratio": 0.02, "gpu_power": 0.25}', 9.0, 0.25),
        (b'{"gpu_usage": [461, 0.02], "gpu_power": 0.25}', None, 0.25),
        (b'{"gpu_active_ratio": 0.09, "gpu_po', None, None),
        (b"[]", None, None),
        (b'{"gpu_active_ratio": null, "gpu_power": -1}', None, None),
    ],
)
def test_macmon(line, use, power):
    told = parse_macmon(line)
    assert (told.gpu_percent, told.gpu_watts) == (use, power)


# What public captures of real Macs hold, where they lie beside the checkout.
CAPTURED = {
    "empty-no-match.txt": (None, None, None),
    "intel-imac-amd-radeon.txt": (2, None, None),
    "intel-iris-no-device-utilisation.txt": (None, None, None),
    "m1-2021-perfstats-line.txt": (16, 448659456, None),
    "m1max-32core-busy25.txt": (25, 745570304, "Apple M1 Max"),
    "m1pro-macos12.6-busy2.txt": (2, 340983808, None),
    "m2pro-tiled-scene-bytes-spelling.txt": (34, 4810719232, "Apple M2 Pro"),
    "m3-g15g-pipe-prefix-busy27.txt": (27, 1226113024, None),
    "m3pro-g15s-busy14.plist": (14, 639418368, None),
    "m3pro-g15x-busy16.txt": (16, 568164352, "Apple M3 Pro"),
    "m4pro-20core-busy27.txt": (27, 650788864, "Apple M4 Pro"),
    "m5pro-g17x-macos27.2-busy87.txt": (87, 19327352832, "Apple M5 Pro"),
    "unknown-chip-compute-only-busy97.txt": (97, 1444118528, None),
}


@pytest.mark.skipif(not SAMPLES.is_dir(), reason="no captures beside the checkout")
def test_every_capture_of_ioreg():
    found = {}
    for path in sorted((SAMPLES / "ioreg").iterdir()):
        if path.name != "SOURCES.md":
            told = parse_ioreg(path.read_bytes())
            found[path.name] = (told.gpu_percent, told.gpu_memory_bytes, told.chip)
    assert found == CAPTURED


@pytest.mark.skipif(not SAMPLES.is_dir(), reason="no captures beside the checkout")
def test_every_capture_of_pmset_and_notifyutil():
    found = {}
    for path in sorted((SAMPLES / "pmset").glob("*.txt")):
        output = path.read_bytes()
        battery = parse_battery(output)
        found[path.stem] = (
            parse_thermal(output).thermal,
            battery.power,
            battery.battery_percent,
            parse_low_power(output).low_power,
        )
    nothing = (None, None, None, None)
    assert found == {
        "assertions-m2pro-macos15.8": nothing,
        "batt-desktop-other-wording": nothing,
        "batt-desktop": (None, "mains", None, None),
        "batt-m2pro-macos15.8-discharging": (None, "battery", 87, None),
        "batt-m2pro-macos15.8-no-estimate": (None, "mains", 90, None),
        "g-custom-m1-macos26.2": (None, None, None, False),
        "g-disablesleep-on": nothing,
        "g-m1-macos26.2": (None, None, None, False),
        "notifyutil-thermalpressure-0": ("nominal", None, None, None),
        "notifyutil-thermalpressure-2": ("heavy", None, None, None),
        "therm-apple-silicon-macos15.8": nothing,
        "therm-intel-speed-limit-72": nothing,
    }


@pytest.mark.skipif(not SAMPLES.is_dir(), reason="no captures beside the checkout")
def test_the_capture_of_macmon():
    (path,) = (SAMPLES / "external").glob("macmon-*.json")
    told = parse_macmon(path.read_bytes())
    assert (told.gpu_percent, told.gpu_watts) == (9.0, 0.017451683)


@pytest.mark.skipif(not SAMPLES.is_dir(), reason="no captures beside the checkout")
@pytest.mark.parametrize("parse", [parse_ioreg, parse_thermal, parse_battery, parse_low_power, parse_macmon])
def test_nothing_that_a_mac_says_raises(parse):
    for path in SAMPLES.rglob("*.*"):
        parse(path.read_bytes())
