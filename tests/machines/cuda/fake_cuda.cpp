// A libcuda for tests: it has the types of the real header, runs no kernels, and writes down what it
// was asked for. Launches are handed to a function of the test. Graphs (fake_graphs.inc) run their nodes
// one after the other, in a random order that their edges allow.
#include <cuda.h>

#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <vector>

using Launched = int (*)(unsigned long long function, unsigned blocks, unsigned threads, unsigned shared,
                         unsigned long long stream, int cooperative, void** parameters);

static std::string written;
static std::map<std::string, int> results;
static std::map<unsigned long long, unsigned long long> captures;
static Launched launched;
static thread_local std::vector<CUcontext> contexts;
static thread_local int mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
static int resident = 1, version = 12080;
static std::map<int, int> attributes;
static unsigned long long handles = 0x100;
static std::map<unsigned long long, std::string> names;  // of functions
static std::map<unsigned long long, int> parameter_counts;

template <class T> static T handle() { return reinterpret_cast<T>(++handles); }
template <class T> static unsigned long long number(T h) { return (unsigned long long)h; }

static int done(const char* name, const char* format = "", ...) {
  char text[512];
  va_list rest;
  va_start(rest, format);
  vsnprintf(text, sizeof text, format, rest);
  va_end(rest);
  static std::mutex mutex;
  std::lock_guard<std::mutex> lock(mutex);
  written += std::string(name) + (*text ? " " : "") + text + "\n";
  auto found = results.find(name);
  return found == results.end() ? 0 : found->second;
}

#define RESULT(...) return (CUresult)done(__func__, __VA_ARGS__)

extern "C" {
// ---- what the tests call ---------------------------------------------------------------------
const char* fake_log() { return written.c_str(); }
void fake_clear() { written.clear(); }
void fake_result(const char* name, int code) { results[name] = code; }
void fake_capture(unsigned long long stream, unsigned long long id) { captures[stream] = id; }
void fake_launched(Launched function) { launched = function; }
void fake_resident(int blocks) { resident = blocks; }
void fake_version(int number) { version = number; }
int fake_mode() { return mode; }
void fake_attribute(int number, int value) { attributes[number] = value; }
void fake_parameters(unsigned long long function, int count) { parameter_counts[function] = count; }
void fake_reset() {
  written.clear(), results.clear(), captures.clear(), contexts.clear();
  mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  launched = nullptr, resident = 1, version = 12080, attributes = {{CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH, 1}};
}

// ---- the driver ------------------------------------------------------------------------------
CUresult cuInit(unsigned flags) { RESULT("%u", flags); }
CUresult cuGetErrorName(CUresult error, const char** text) {
  *text = error == CUDA_ERROR_NO_BINARY_FOR_GPU ? "CUDA_ERROR_NO_BINARY_FOR_GPU" : "CUDA_ERROR";
  return CUDA_SUCCESS;
}
CUresult cuGetErrorString(CUresult error, const char** text) {
  *text = error == CUDA_ERROR_NO_DEVICE ? "no CUDA-capable device is detected" : "some text";
  return CUDA_SUCCESS;
}
CUresult cuDriverGetVersion(int* number) {
  *number = version;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  *device = ordinal;
  RESULT("%d", ordinal);
}
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  *value = attributes[attribute];
  RESULT("%d of %d", (int)attribute, device);
}
CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  *context = (CUcontext)(0x7000000000ull + device);
  RESULT("%d", device);
}
CUresult cuCtxGetCurrent(CUcontext* context) {
  *context = contexts.empty() ? nullptr : contexts.back();
  auto code = results.find(__func__);
  return (CUresult)(code == results.end() ? 0 : code->second);
}
CUresult cuCtxPushCurrent(CUcontext context) {
  contexts.push_back(context);
  RESULT("%llx", number(context));
}
CUresult cuCtxPopCurrent(CUcontext* context) {
  *context = contexts.back();
  contexts.pop_back();
  RESULT("");
}
CUresult cuCtxSynchronize() { RESULT(""); }
CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  *module = handle<CUmodule>();
  std::string text((const char*)image);
  RESULT("%s mode=%d", text.substr(0, text.find('\n')).c_str(), mode);
}
CUresult cuModuleGetFunction(CUfunction* function, CUmodule, const char* name) {
  *function = handle<CUfunction>();
  names[number(*function)] = name;
  RESULT("%s", name);
}
CUresult cuFuncSetAttribute(CUfunction, CUfunction_attribute attribute, int value) {
  RESULT("%s=%d", attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES ? "shared" : "?", value);
}
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction, int threads, size_t shared) {
  *blocks = resident;
  RESULT("threads=%d shared=%zu", threads, shared);
}
CUresult cuLaunchKernelEx(const CUlaunchConfig* c, CUfunction f, void** parameters, void** extra) {
  bool whole = c->gridDimY == 1 && c->gridDimZ == 1 && c->blockDimY == 1 && c->blockDimZ == 1 && !extra;
  int cooperative = 0;
  for (unsigned n = 0; n < c->numAttrs; ++n)
    if (c->attrs[n].id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE) cooperative = c->attrs[n].value.cooperative;
  int code = done(__func__, "%s blocks=%u threads=%u shared=%u stream=%llx cooperative=%d",
                  whole ? "line" : "?", c->gridDimX, c->blockDimX, c->sharedMemBytes,
                  number(c->hStream), cooperative);
  if (!code && launched)
    code = launched(number(f), c->gridDimX, c->blockDimX, c->sharedMemBytes, number(c->hStream), cooperative,
                    parameters);
  return (CUresult)code;
}
CUresult cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id,
                                   CUgraph*, const CUgraphNode**, size_t*) {
  auto found = captures.find(number(stream));
  bool active = found != captures.end() && found->second;
  *status = active ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
  if (active) *id = found->second;
  auto code = results.find(__func__);
  return (CUresult)(code == results.end() ? 0 : code->second);
}
CUresult cuStreamSynchronize(CUstream stream) { RESULT("%llx", number(stream)); }
CUresult cuStreamWaitEvent(CUstream stream, CUevent, unsigned flags) { RESULT("%llx flags=%u", number(stream), flags); }
CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* other) {
  int before = mode;
  mode = *other;
  *other = (CUstreamCaptureMode)before;
  RESULT("%d", mode);
}
CUresult cuEventCreate(CUevent* event, unsigned flags) {
  *event = handle<CUevent>();
  RESULT("%u", flags);
}
CUresult cuEventRecord(CUevent, CUstream stream) { RESULT("%llx", number(stream)); }
#include "fake_graphs.inc"
}
