//! The exported C functions: those that nvml-wrapper (as carma uses it) and NVIDIA's pynvml call
//! to read GPUs. What carma must never do (MIG layout, clocks, limits, modes) is not there.

use crate::state::{FakeGpm, FakeGpu, FakeMig, FakeProcess, State, used_mib};
use nvml_wrapper_sys::bindings::*;
use std::collections::BTreeMap;
use std::ffi::{CStr, OsStr, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr::without_provenance_mut;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nvmlClockType_enum_NVML_CLOCK_MEM as CLOCK_MEMORY;
use nvmlClockType_enum_NVML_CLOCK_SM as CLOCK_SM;
use nvmlReturn_enum_NVML_ERROR_ARGUMENT_VERSION_MISMATCH as VERSION_MISMATCH;
use nvmlReturn_enum_NVML_ERROR_DRIVER_NOT_LOADED as DRIVER_NOT_LOADED;
use nvmlReturn_enum_NVML_ERROR_GPU_IS_LOST as GPU_IS_LOST;
use nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE as INSUFFICIENT_SIZE;
use nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID_ARGUMENT;
use nvmlReturn_enum_NVML_ERROR_NO_PERMISSION as NO_PERMISSION;
use nvmlReturn_enum_NVML_ERROR_NOT_FOUND as NOT_FOUND;
use nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED as NOT_SUPPORTED;
use nvmlReturn_enum_NVML_ERROR_UNINITIALIZED as UNINITIALIZED;
use nvmlReturn_enum_NVML_ERROR_UNKNOWN as UNKNOWN;
use nvmlReturn_enum_NVML_SUCCESS as SUCCESS;

type Answer<T = ()> = Result<T, nvmlReturn_t>;

/// What the library keeps between calls. Handles and samples are numbers, never addresses, so a
/// stale one is found out instead of followed.
struct Library {
    inits: u32,
    text: String,
    state: Option<Arc<State>>,
    /// GPU, MIG instance: handle n is entry n - 1, and stays valid.
    handles: Vec<(String, Option<String>)>,
    samples: BTreeMap<usize, Option<FakeGpm>>,
    next_sample: usize,
}

static LIBRARY: Mutex<Library> = Mutex::new(Library {
    inits: 0,
    text: String::new(),
    state: None,
    handles: Vec::new(),
    samples: BTreeMap::new(),
    next_sample: 1,
});

fn library() -> MutexGuard<'static, Library> {
    LIBRARY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Where the state file lies: see the crate's documentation.
fn state_path() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("FAKE_NVML_STATE") {
        return Some(path.into());
    }
    let address = state_path as fn() -> Option<PathBuf> as *const c_void;
    // SAFETY: dladdr only looks the address up, and its strings live as long as this library.
    let name = unsafe {
        let mut found: libc::Dl_info = std::mem::zeroed();
        if libc::dladdr(address, &raw mut found) == 0 || found.dli_fname.is_null() {
            return None;
        }
        CStr::from_ptr(found.dli_fname)
    };
    Some(Path::new(OsStr::from_bytes(name.to_bytes())).with_file_name(crate::STATE_NAME))
}

impl Library {
    /// The state file as it is now. It is small, and comparing its text is surer than comparing
    /// times, which are coarse.
    fn state(&mut self) -> Answer<Arc<State>> {
        let path = state_path().ok_or(DRIVER_NOT_LOADED)?;
        let text = std::fs::read_to_string(&path).map_err(|_| DRIVER_NOT_LOADED)?;
        match &self.state {
            Some(state) if text == self.text => Ok(Arc::clone(state)),
            _ => {
                let state = serde_json::from_str(&text).map_err(|error| {
                    eprintln!("fake-nvml: {}: {error}", path.display());
                    UNKNOWN
                })?;
                self.text = text;
                Ok(Arc::clone(self.state.insert(Arc::new(state))))
            }
        }
    }

    fn handle(&mut self, gpu: &str, mig: Option<&str>) -> nvmlDevice_t {
        let known = |(g, m): &(String, Option<String>)| g == gpu && m.as_deref() == mig;
        let at = self.handles.iter().position(known).unwrap_or_else(|| {
            self.handles.push((gpu.to_owned(), mig.map(str::to_owned)));
            self.handles.len() - 1
        });
        without_provenance_mut(at + 1)
    }
}

/// Begins a call: hangs or fails as the state says.
fn enter(function: &str, uuids: &[&str]) -> Answer<Arc<State>> {
    let began = Instant::now();
    loop {
        let state = {
            let mut library = library();
            if library.inits == 0 && !function.starts_with("nvmlInit") {
                return Err(UNINITIALIZED);
            }
            library.state()?
        };
        let Some(fault) = state.fault(function, uuids) else {
            return Ok(state);
        };
        let hangs = |ms| began.elapsed() < Duration::from_millis(ms);
        if !fault.hang_ms.is_some_and(hangs) {
            return fault.code.map_or(Ok(Arc::clone(&state)), Err);
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A device at the time of a call.
struct Device {
    state: Arc<State>,
    gpu: usize,
    mig: Option<usize>,
}

impl Device {
    fn gpu(&self) -> &FakeGpu {
        &self.state.gpus[self.gpu]
    }

    fn mig(&self) -> Option<&FakeMig> {
        self.gpu().mig.as_deref()?.get(self.mig?)
    }

    /// What only a whole GPU tells.
    fn whole(&self) -> Answer<&FakeGpu> {
        if self.mig.is_none() { Ok(self.gpu()) } else { Err(NOT_SUPPORTED) }
    }

    /// Total, reserved, used: bytes.
    fn memory(&self) -> (u64, u64, u64) {
        let (gpu, bytes) = (self.gpu(), |mib: u64| mib.saturating_mul(1 << 20));
        let (total, reserved, used, by) = match self.mig() {
            Some(mig) => (mig.memory_total_mib, 0, mig.memory_used_mib, &mig.processes),
            None => (gpu.memory_total_mib, gpu.reserved_mib, gpu.memory_used_mib, &gpu.processes),
        };
        (bytes(total), bytes(reserved), bytes(used_mib(used, by)))
    }

    fn processes(&self) -> &[FakeProcess] {
        self.mig().map_or(&self.gpu().processes, |mig| &mig.processes)
    }
}

fn device(function: &str, handle: nvmlDevice_t) -> Answer<Device> {
    let at = handle.addr().wrapping_sub(1);
    let (gpu, mig) = library().handles.get(at).cloned().ok_or(INVALID_ARGUMENT)?;
    let uuids = [gpu.as_str(), mig.as_deref().unwrap_or(&gpu)];
    let state = enter(function, &uuids)?;
    let gpu = state.gpus.iter().position(|g| g.uuid == gpu).ok_or(GPU_IS_LOST)?;
    let mig = match mig {
        None => None,
        Some(uuid) => {
            let instances = state.gpus[gpu].mig.as_deref().unwrap_or_default();
            Some(instances.iter().position(|m| m.uuid == uuid).ok_or(INVALID_ARGUMENT)?)
        }
    };
    Ok(Device { state, gpu, mig })
}

/// Answers through an out pointer.
fn put<T>(out: *mut T, value: T) -> Answer {
    if out.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: the C caller vouches for its pointers; more than null cannot be checked.
    unsafe { out.write(value) };
    Ok(())
}

fn put_text(out: *mut c_char, capacity: c_uint, text: &str) -> Answer {
    if out.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    if text.len() >= capacity as usize {
        return Err(INSUFFICIENT_SIZE);
    }
    // SAFETY: the caller's buffer has `capacity` bytes, which is more than the text has.
    unsafe {
        out.copy_from_nonoverlapping(text.as_ptr().cast(), text.len());
        out.add(text.len()).write(0);
    }
    Ok(())
}

/// Answers with a list: says the size needed where the caller's buffer is too small.
fn put_list<T>(count: *mut c_uint, out: *mut T, items: impl ExactSizeIterator<Item = T>) -> Answer {
    if count.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: the caller's buffer has as many entries as `count` says.
    unsafe {
        let capacity = count.replace(items.len() as c_uint) as usize;
        if items.len() > capacity || (out.is_null() && items.len() > 0) {
            return Err(INSUFFICIENT_SIZE);
        }
        items.enumerate().for_each(|(n, item)| out.add(n).write(item));
    }
    Ok(())
}

fn put_processes(
    device: &Device,
    (count, out): (*mut c_uint, *mut nvmlProcessInfo_t),
    listed: fn(&FakeProcess) -> bool,
) -> Answer {
    let listed: Vec<_> = device.processes().iter().filter(|p| listed(p)).collect();
    let bytes = |p: &FakeProcess| p.used_mib.map_or(u64::MAX, |mib| mib.saturating_mul(1 << 20));
    let entry = |p: &FakeProcess| nvmlProcessInfo_t {
        pid: p.pid,
        usedGpuMemory: bytes(p),
        gpuInstanceId: device.mig().map_or(c_uint::MAX, |mig| mig.gpu_instance_id),
        computeInstanceId: device.mig().map_or(c_uint::MAX, |_| 0),
    };
    put_list(count, out, listed.into_iter().map(entry))
}

fn take_sample(sample: nvmlGpmSample_t, gpm: Option<FakeGpm>) -> Answer {
    let gpm = gpm.ok_or(NOT_SUPPORTED)?;
    *library().samples.get_mut(&sample.addr()).ok_or(INVALID_ARGUMENT)? = Some(gpm);
    Ok(())
}

fn put_metrics(get: *mut nvmlGpmMetricsGet_t) -> Answer {
    if get.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: as in `put`. No reference to the whole struct is made: the length of its array
    // differs between releases of NVML, and only `numMetrics` entries are the caller's promise.
    unsafe {
        if (*get).version != NVML_GPM_METRICS_GET_VERSION {
            return Err(VERSION_MISMATCH);
        }
        let library = library();
        let taken = |sample: nvmlGpmSample_t| library.samples.get(&sample.addr())?.as_ref();
        let first = taken((*get).sample1).ok_or(INVALID_ARGUMENT)?;
        let second = taken((*get).sample2).ok_or(INVALID_ARGUMENT)?;
        let metrics = (&raw mut (*get).metrics).cast::<nvmlGpmMetric_t>();
        for metric in (0..(*get).numMetrics as usize).map(|n| metrics.add(n)) {
            let id = (*metric).metricId;
            match first.metric(id).zip(second.metric(id)) {
                Some((a, b)) => {
                    (*metric).nvmlReturn = SUCCESS;
                    (*metric).value = f64::midpoint(a, b);
                }
                None => (*metric).nvmlReturn = NOT_SUPPORTED,
            }
        }
    }
    Ok(())
}

fn init() -> Answer {
    enter("nvmlInit", &[])?;
    library().inits += 1;
    Ok(())
}

fn answer(run: impl FnOnce() -> Answer) -> nvmlReturn_t {
    run().err().unwrap_or(SUCCESS)
}

/// Exports functions, each under all the names that share its body. `FUNCTION` is the name called.
macro_rules! export {
    ($($($name:ident)|+ = $arguments:tt $body:tt)*) => {$($(
        #[unsafe(no_mangle)]
        extern "C" fn $name $arguments -> nvmlReturn_t {
            #[allow(dead_code)]
            const FUNCTION: &str = stringify!($name);
            answer(|| $body)
        }
    )+)*};
}

export! {
    nvmlInit | nvmlInit_v2 = () { init() }
    nvmlInitWithFlags = (_flags: c_uint) { init() }
    nvmlShutdown = () {
        let mut library = library();
        library.inits = library.inits.checked_sub(1).ok_or(UNINITIALIZED)?;
        Ok(())
    }
    nvmlSystemGetDriverVersion = (out: *mut c_char, length: c_uint) {
        put_text(out, length, &enter(FUNCTION, &[])?.driver_version)
    }
    nvmlSystemGetNVMLVersion = (out: *mut c_char, length: c_uint) {
        put_text(out, length, &format!("13.{}", enter(FUNCTION, &[])?.driver_version))
    }
    nvmlSystemGetCudaDriverVersion | nvmlSystemGetCudaDriverVersion_v2 = (out: *mut i32) {
        enter(FUNCTION, &[])?;
        put(out, 13_000)
    }
    nvmlDeviceGetCount | nvmlDeviceGetCount_v2 = (out: *mut c_uint) {
        put(out, enter(FUNCTION, &[])?.gpus.len() as c_uint)
    }
    nvmlDeviceGetHandleByIndex | nvmlDeviceGetHandleByIndex_v2 =
        (index: c_uint, out: *mut nvmlDevice_t)
    {
        let all = enter(FUNCTION, &[])?;
        let gpu = all.gpus.get(index as usize).ok_or(INVALID_ARGUMENT)?;
        enter(FUNCTION, &[&gpu.uuid])?;
        put(out, library().handle(&gpu.uuid, None))
    }
    nvmlDeviceGetHandleByUUID = (uuid: *const c_char, out: *mut nvmlDevice_t) {
        if uuid.is_null() {
            return Err(INVALID_ARGUMENT);
        }
        // SAFETY: the caller vouches for its string.
        let uuid = unsafe { CStr::from_ptr(uuid) }.to_str().map_err(|_| INVALID_ARGUMENT)?;
        let state = enter(FUNCTION, &[uuid])?;
        for gpu in &state.gpus {
            if gpu.uuid == uuid {
                return put(out, library().handle(uuid, None));
            }
            if gpu.mig.iter().flatten().any(|mig| mig.uuid == uuid) {
                return put(out, library().handle(&gpu.uuid, Some(uuid)));
            }
        }
        Err(NOT_FOUND)
    }
    nvmlDeviceGetName = (handle: nvmlDevice_t, out: *mut c_char, length: c_uint) {
        let device = device(FUNCTION, handle)?;
        let name = &device.gpu().name;
        match device.mig() {
            None => put_text(out, length, name),
            Some(mig) => put_text(out, length, &format!("{name} MIG {}", mig.profile)),
        }
    }
    nvmlDeviceGetUUID = (handle: nvmlDevice_t, out: *mut c_char, length: c_uint) {
        let device = device(FUNCTION, handle)?;
        put_text(out, length, device.mig().map_or(&device.gpu().uuid, |mig| &mig.uuid))
    }
    nvmlDeviceGetIndex = (handle: nvmlDevice_t, out: *mut c_uint) {
        let device = device(FUNCTION, handle)?;
        put(out, device.mig.unwrap_or(device.gpu) as c_uint)
    }
    nvmlDeviceGetMemoryInfo = (handle: nvmlDevice_t, out: *mut nvmlMemory_t) {
        let (total, reserved, used) = device(FUNCTION, handle)?.memory();
        // The older call counts what the driver reserves as used.
        let used = used.saturating_add(reserved);
        put(out, nvmlMemory_t { total, free: total.saturating_sub(used), used })
    }
    nvmlDeviceGetMemoryInfo_v2 = (handle: nvmlDevice_t, out: *mut nvmlMemory_v2_t) {
        let (total, reserved, used) = device(FUNCTION, handle)?.memory();
        let wanted = size_of::<nvmlMemory_v2_t>() as c_uint | 2 << 24;
        // SAFETY: as in `put`.
        if out.is_null() || unsafe { (*out).version } != wanted {
            return Err(VERSION_MISMATCH);
        }
        let free = total.saturating_sub(reserved).saturating_sub(used);
        put(out, nvmlMemory_v2_t { version: wanted, total, reserved, free, used })
    }
    nvmlDeviceGetComputeRunningProcesses_v2 | nvmlDeviceGetComputeRunningProcesses_v3 =
        (handle: nvmlDevice_t, count: *mut c_uint, out: *mut nvmlProcessInfo_t)
    { put_processes(&device(FUNCTION, handle)?, (count, out), |p| !p.graphics) }
    nvmlDeviceGetGraphicsRunningProcesses_v2 | nvmlDeviceGetGraphicsRunningProcesses_v3 =
        (handle: nvmlDevice_t, count: *mut c_uint, out: *mut nvmlProcessInfo_t)
    { put_processes(&device(FUNCTION, handle)?, (count, out), |p| p.graphics) }
    nvmlDeviceGetMPSComputeRunningProcesses_v2 | nvmlDeviceGetMPSComputeRunningProcesses_v3 =
        (handle: nvmlDevice_t, count: *mut c_uint, out: *mut nvmlProcessInfo_t)
    { put_processes(&device(FUNCTION, handle)?, (count, out), |p| p.mps) }
    nvmlDeviceGetPowerUsage = (handle: nvmlDevice_t, out: *mut c_uint) {
        put(out, device(FUNCTION, handle)?.whole()?.power_mw.ok_or(NOT_SUPPORTED)?)
    }
    nvmlDeviceGetCudaComputeCapability = (handle: nvmlDevice_t, major: *mut c_int, minor: *mut c_int) {
        let version = device(FUNCTION, handle)?.gpu().compute_capability;
        put(major, version.0)?;
        put(minor, version.1)
    }
    nvmlDeviceGetTotalEnergyConsumption = (handle: nvmlDevice_t, out: *mut c_ulonglong) {
        put(out, device(FUNCTION, handle)?.whole()?.energy_mj.ok_or(NOT_SUPPORTED)?)
    }
    nvmlDeviceGetUtilizationRates = (handle: nvmlDevice_t, out: *mut nvmlUtilization_t) {
        let device = device(FUNCTION, handle)?;
        let whole = device.whole()?;
        let gpu = whole.utilization.ok_or(NOT_SUPPORTED)?;
        put(out, nvmlUtilization_t { gpu, memory: whole.memory_utilization })
    }
    nvmlDeviceGetClockInfo = (handle: nvmlDevice_t, clock: nvmlClockType_t, out: *mut c_uint) {
        let device = device(FUNCTION, handle)?;
        let gpu = device.whole()?;
        let mhz = match clock {
            CLOCK_SM => gpu.sm_clock_mhz,
            CLOCK_MEMORY => gpu.memory_clock_mhz,
            _ => None,
        };
        put(out, mhz.ok_or(NOT_SUPPORTED)?)
    }
    nvmlDeviceGetTemperature = (handle: nvmlDevice_t, _sensor: c_uint, out: *mut c_uint) {
        put(out, device(FUNCTION, handle)?.whole()?.temperature.ok_or(NOT_SUPPORTED)?)
    }
    nvmlDeviceGetMigMode = (handle: nvmlDevice_t, current: *mut c_uint, pending: *mut c_uint) {
        let mode = c_uint::from(device(FUNCTION, handle)?.whole()?.mig.is_some());
        put(current, mode)?;
        put(pending, mode)
    }
    nvmlDeviceGetMaxMigDeviceCount = (handle: nvmlDevice_t, out: *mut c_uint) {
        let enabled = device(FUNCTION, handle)?.whole()?.mig.is_some();
        put(out, if enabled { 7 } else { 0 })
    }
    nvmlDeviceGetMigDeviceHandleByIndex =
        (handle: nvmlDevice_t, index: c_uint, out: *mut nvmlDevice_t)
    {
        let device = device(FUNCTION, handle)?;
        let gpu = device.whole()?;
        let mig = gpu.mig.as_deref().ok_or(NOT_SUPPORTED)?.get(index as usize).ok_or(NOT_FOUND)?;
        put(out, library().handle(&gpu.uuid, Some(&mig.uuid)))
    }
    nvmlDeviceGetDeviceHandleFromMigDeviceHandle = (handle: nvmlDevice_t, out: *mut nvmlDevice_t) {
        let device = device(FUNCTION, handle)?;
        device.mig().ok_or(INVALID_ARGUMENT)?;
        put(out, library().handle(&device.gpu().uuid, None))
    }
    nvmlDeviceIsMigDeviceHandle = (handle: nvmlDevice_t, out: *mut c_uint) {
        put(out, c_uint::from(device(FUNCTION, handle)?.mig.is_some()))
    }
    nvmlDeviceGetGpuInstanceId = (handle: nvmlDevice_t, out: *mut c_uint) {
        put(out, device(FUNCTION, handle)?.mig().ok_or(NOT_SUPPORTED)?.gpu_instance_id)
    }
    nvmlDeviceGetAttributes | nvmlDeviceGetAttributes_v2 =
        (handle: nvmlDevice_t, out: *mut nvmlDeviceAttributes_st)
    {
        let device = device(FUNCTION, handle)?;
        let mig = device.mig().ok_or(NOT_SUPPORTED)?;
        let slices = mig.profile.split('g').next().and_then(|n| n.parse().ok()).unwrap_or(1);
        put(out, nvmlDeviceAttributes_st {
            multiprocessorCount: 16,
            sharedCopyEngineCount: slices,
            sharedDecoderCount: slices,
            sharedEncoderCount: 0,
            sharedJpegCount: slices,
            sharedOfaCount: 0,
            gpuInstanceSliceCount: slices,
            computeInstanceSliceCount: slices,
            memorySizeMB: mig.memory_total_mib,
        })
    }
    nvmlGpmQueryDeviceSupport = (handle: nvmlDevice_t, out: *mut nvmlGpmSupport_t) {
        let supported = c_uint::from(device(FUNCTION, handle)?.gpu().gpm.is_some());
        put(out, nvmlGpmSupport_t {
            version: NVML_GPM_SUPPORT_VERSION,
            isSupportedDevice: supported,
        })
    }
    nvmlGpmSampleAlloc = (out: *mut nvmlGpmSample_t) {
        enter(FUNCTION, &[])?;
        let mut library = library();
        let sample = library.next_sample;
        library.next_sample += 1;
        library.samples.insert(sample, None);
        put(out, without_provenance_mut(sample))
    }
    nvmlGpmSampleFree = (sample: nvmlGpmSample_t) {
        library().samples.remove(&sample.addr()).map(drop).ok_or(INVALID_ARGUMENT)
    }
    nvmlGpmSampleGet = (handle: nvmlDevice_t, sample: nvmlGpmSample_t) {
        // A MIG instance is sampled through its GPU.
        let device = device(FUNCTION, handle)?;
        take_sample(sample, device.whole().map_err(|_| INVALID_ARGUMENT)?.gpm.clone())
    }
    nvmlGpmMigSampleGet = (handle: nvmlDevice_t, instance: c_uint, sample: nvmlGpmSample_t) {
        let device = device(FUNCTION, handle)?;
        let gpu = device.whole().map_err(|_| INVALID_ARGUMENT)?;
        let mut instances = gpu.mig.iter().flatten();
        let mig = instances.find(|m| m.gpu_instance_id == instance).ok_or(INVALID_ARGUMENT)?;
        take_sample(sample, mig.gpm.clone().or_else(|| gpu.gpm.clone()))
    }
    nvmlGpmMetricsGet = (get: *mut nvmlGpmMetricsGet_t) {
        enter(FUNCTION, &[])?;
        put_metrics(get)
    }
}

#[unsafe(no_mangle)]
extern "C" fn nvmlErrorString(code: nvmlReturn_t) -> *const c_char {
    match code {
        SUCCESS => c"Success",
        UNINITIALIZED => c"Uninitialized",
        INVALID_ARGUMENT => c"Invalid Argument",
        NOT_SUPPORTED => c"Not Supported",
        NO_PERMISSION => c"Insufficient Permissions",
        NOT_FOUND => c"Not Found",
        INSUFFICIENT_SIZE => c"Insufficient Size",
        DRIVER_NOT_LOADED => c"Driver Not Loaded",
        GPU_IS_LOST => c"GPU is lost",
        VERSION_MISMATCH => c"Argument version mismatch",
        _ => c"Unknown Error",
    }
    .as_ptr()
}
