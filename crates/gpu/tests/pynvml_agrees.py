"""Reads GPUs through NVIDIA's own Python binding and prints them as JSON, for comparison with carma.

Usage: python3 pynvml_agrees.py SECONDS
SECONDS lie between the two GPM samples. The library is the `libnvidia-ml.so.1` that the dynamic
loader finds. Readings that the driver does not support are null.
"""

import json
import sys
import time

import pynvml as nvml

GPM = {
    "gract": nvml.NVML_GPM_METRIC_GRAPHICS_UTIL,
    "smact": nvml.NVML_GPM_METRIC_SM_UTIL,
    "smocc": nvml.NVML_GPM_METRIC_SM_OCCUPANCY,
    "drama": nvml.NVML_GPM_METRIC_DRAM_BW_UTIL,
    "tensor": nvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL,
    "fp64": nvml.NVML_GPM_METRIC_FP64_UTIL,
    "fp32": nvml.NVML_GPM_METRIC_FP32_UTIL,
    "fp16": nvml.NVML_GPM_METRIC_FP16_UTIL,
    "pcie_tx": nvml.NVML_GPM_METRIC_PCIE_TX_PER_SEC,
    "pcie_rx": nvml.NVML_GPM_METRIC_PCIE_RX_PER_SEC,
}


def optional(call, *args):
    try:
        return call(*args)
    except nvml.NVMLError_NotSupported:
        return None


def devices():
    """Whole GPUs and, of a GPU in MIG mode, its instances: (handle, GPU handle, instance id)."""
    for index in range(nvml.nvmlDeviceGetCount()):
        gpu = nvml.nvmlDeviceGetHandleByIndex(index)
        if (optional(nvml.nvmlDeviceGetMigMode, gpu) or [0])[0] == nvml.NVML_DEVICE_MIG_DISABLE:
            yield gpu, gpu, None
            continue
        for slot in range(nvml.nvmlDeviceGetMaxMigDeviceCount(gpu)):
            try:
                mig = nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, slot)
            except nvml.NVMLError_NotFound:
                continue
            yield mig, gpu, nvml.nvmlDeviceGetGpuInstanceId(mig)


def sample(gpu, instance):
    if not nvml.nvmlGpmQueryDeviceSupport(gpu).isSupportedDevice:
        return None
    taken = nvml.nvmlGpmSampleAlloc()
    if instance is None:
        return nvml.nvmlGpmSampleGet(gpu, taken)
    return nvml.nvmlGpmMigSampleGet(gpu, instance, taken)


def metrics(first, second):
    if first is None:
        return None
    get = nvml.c_nvmlGpmMetricsGet_t()
    get.version = nvml.NVML_GPM_METRICS_GET_VERSION
    get.numMetrics = len(GPM)
    get.sample1, get.sample2 = first, second
    for at, metric in enumerate(GPM.values()):
        get.metrics[at].metricId = metric
    nvml.nvmlGpmMetricsGet(get)
    values = {
        name: got.value if got.nvmlReturn == nvml.NVML_SUCCESS else None
        for name, got in zip(GPM, get.metrics)
    }
    nvml.nvmlGpmSampleFree(first)
    nvml.nvmlGpmSampleFree(second)
    return values


def main():
    nvml.nvmlInit()
    found = list(devices())
    first = [sample(gpu, instance) for _, gpu, instance in found]
    time.sleep(float(sys.argv[1]))
    out = []
    for (device, gpu, instance), before in zip(found, first):
        memory = nvml.nvmlDeviceGetMemoryInfo(device, version=nvml.nvmlMemory_v2)
        older = nvml.nvmlDeviceGetMemoryInfo(device)
        utilization = optional(nvml.nvmlDeviceGetUtilizationRates, device)
        after = None if before is None else sample(gpu, instance)
        processes = {}
        for list_ in (
            nvml.nvmlDeviceGetComputeRunningProcesses,
            nvml.nvmlDeviceGetGraphicsRunningProcesses,
            nvml.nvmlDeviceGetMPSComputeRunningProcesses,
        ):
            for process in optional(list_, device) or []:
                processes[process.pid] = process.usedGpuMemory
        out.append({
            "uuid": nvml.nvmlDeviceGetUUID(device),
            "name": nvml.nvmlDeviceGetName(device),
            "total_b": memory.total,
            "in_use_b": memory.used + memory.reserved,
            "in_use_v1_b": older.used,
            "power_mw": optional(nvml.nvmlDeviceGetPowerUsage, device),
            "energy_mj": optional(nvml.nvmlDeviceGetTotalEnergyConsumption, device),
            "utilization_pct": None if utilization is None else utilization.gpu,
            "processes": [{"pid": p, "used_b": b} for p, b in sorted(processes.items())],
            "gpm": metrics(before, after),
        })
    print(json.dumps({
        "driver_version": nvml.nvmlSystemGetDriverVersion(),
        "gpus": out,
    }))
    nvml.nvmlShutdown()


main()
