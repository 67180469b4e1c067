// Declarations of what the C++ export calls, with the argument types that ONNX Runtime's C++ API documents.
#include <initializer_list>
#include <string>
#include <unordered_map>
#include <vector>
#define ORT_TSTR(X) X
enum OrtLoggingLevel { ORT_LOGGING_LEVEL_WARNING = 2 };
enum OrtHardwareDeviceType { OrtHardwareDeviceType_CPU, OrtHardwareDeviceType_GPU, OrtHardwareDeviceType_NPU };
enum ExecutionMode { ORT_SEQUENTIAL = 0, ORT_PARALLEL = 1 };
enum GraphOptimizationLevel {
  ORT_DISABLE_ALL = 0,
  ORT_ENABLE_BASIC = 1,
  ORT_ENABLE_EXTENDED = 2,
  ORT_ENABLE_LAYOUT = 3,
  ORT_ENABLE_ALL = 99
};
struct OrtThreadingOptions;
struct OrtCUDAProviderOptionsV2;
struct OrtTensorRTProviderOptionsV2;
struct OrtStatus;
struct OrtCANNProviderOptions;
struct OrtDnnlProviderOptions;
struct OrtROCMProviderOptions;
struct OrtApi {
  OrtStatus* (*CreateCANNProviderOptions)(OrtCANNProviderOptions**);
  OrtStatus* (*UpdateCANNProviderOptions)(OrtCANNProviderOptions*, const char* const*, const char* const*, size_t);
  void (*ReleaseCANNProviderOptions)(OrtCANNProviderOptions*);
  OrtStatus* (*CreateDnnlProviderOptions)(OrtDnnlProviderOptions**);
  OrtStatus* (*UpdateDnnlProviderOptions)(OrtDnnlProviderOptions*, const char* const*, const char* const*, size_t);
  void (*ReleaseDnnlProviderOptions)(OrtDnnlProviderOptions*);
  OrtStatus* (*CreateROCMProviderOptions)(OrtROCMProviderOptions**);
  OrtStatus* (*UpdateROCMProviderOptions)(OrtROCMProviderOptions*, const char* const*, const char* const*, size_t);
  void (*ReleaseROCMProviderOptions)(OrtROCMProviderOptions*);
};
namespace Ort {
const OrtApi& GetApi();
void ThrowOnError(OrtStatus*);
struct ConstHardwareDevice {
  OrtHardwareDeviceType Type() const;
  const char* Vendor() const;
};
struct ConstEpDevice {
  const char* EpName() const;
  ConstHardwareDevice Device() const;
};
using Map = std::unordered_map<std::string, std::string>;
struct ThreadingOptions {
  ThreadingOptions& SetGlobalIntraOpNumThreads(int);
  ThreadingOptions& SetGlobalInterOpNumThreads(int);
  operator const OrtThreadingOptions*() const;
};
struct Env {
  Env(OrtLoggingLevel, const char*);
  Env(const OrtThreadingOptions*, OrtLoggingLevel, const char*);
  Env& RegisterExecutionProviderLibrary(const char*, const std::string&);
  std::vector<ConstEpDevice> GetEpDevices() const;
};
struct CUDAProviderOptions {
  void Update(const Map&);
  OrtCUDAProviderOptionsV2& operator*();
};
struct TensorRTProviderOptions {
  void Update(const Map&);
  OrtTensorRTProviderOptionsV2& operator*();
};
struct SessionOptions {
  SessionOptions& SetIntraOpNumThreads(int);
  SessionOptions& SetInterOpNumThreads(int);
  SessionOptions& SetExecutionMode(ExecutionMode);
  SessionOptions& SetGraphOptimizationLevel(GraphOptimizationLevel);
  SessionOptions& SetDeterministicCompute(bool);
  SessionOptions& DisableMemPattern();
  SessionOptions& DisableCpuMemArena();
  SessionOptions& DisablePerSessionThreads();
  SessionOptions& AddConfigEntry(const char*, const char*);
  SessionOptions& AppendExecutionProvider_CUDA_V2(const OrtCUDAProviderOptionsV2&);
  SessionOptions& AppendExecutionProvider_TensorRT_V2(const OrtTensorRTProviderOptionsV2&);
  SessionOptions& AppendExecutionProvider(const std::string&, const Map& = {});
  SessionOptions& AppendExecutionProvider_OpenVINO_V2(const Map& = {});
  SessionOptions& AppendExecutionProvider_CANN(const OrtCANNProviderOptions&);
  SessionOptions& AppendExecutionProvider_Dnnl(const OrtDnnlProviderOptions&);
  SessionOptions& AppendExecutionProvider_ROCM(const OrtROCMProviderOptions&);
  SessionOptions& AppendExecutionProvider_V2(Env&, const std::vector<ConstEpDevice>&, const Map&);
};
struct RunOptions {
  RunOptions& AddConfigEntry(const char*, const char*);
};
struct Session {
  Session(const Env&, const char*, const SessionOptions&);
};
struct IoBinding {
  explicit IoBinding(Session&);
};
}  // namespace Ort
