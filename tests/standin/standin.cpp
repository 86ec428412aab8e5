// A device of the machine's own memory for tests: PyTorch's PrivateUse1 backend.
//
// Addresses of its tensors are disguised: a CPU kernel, or C code that is given `data_ptr()`, ends the
// process instead of reading them. Operations run as CPU kernels on undisguised aliases of the same
// memory, with the same strides, so that they have the CPU's bits. Whatever would make a GPU wait for
// the host, or the host for a GPU, is counted.

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>

#include <atomic>
#include <cstdlib>
#include <map>
#include <mutex>
#include <set>
#include <unordered_map>

namespace {

using c10::DeviceType;
using at::IValue;
using at::Tensor;

constexpr auto kDevice = DeviceType::PrivateUse1;
// No such address exists, so that whoever reads it directly is stopped by the processor.
constexpr uintptr_t kDisguise = uintptr_t(1) << 62;
constexpr size_t kMemory = size_t(8) << 30;

void* disguised(void* address) {
  return address ? reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(address) | kDisguise) : nullptr;
}

void* plain(const void* address) {
  return reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(address) & ~kDisguise);
}

c10::Device the_device() { return c10::Device(kDevice, 0); }

bool is_ours(const Tensor& tensor) { return tensor.defined() && tensor.device().type() == kDevice; }

// ---- Counts ------------------------------------------------------------------------------------

std::mutex count_lock;
std::map<std::string, int64_t> counts;
PyObject* listener = nullptr;

void count(const std::string& kind, const std::string& name) {
  {
    std::lock_guard<std::mutex> held(count_lock);
    ++counts[kind];
  }
  if (listener != nullptr) {
    pybind11::gil_scoped_acquire gil;
    pybind11::reinterpret_borrow<pybind11::function>(listener)(kind, name);
  }
}

// ---- Memory ------------------------------------------------------------------------------------

std::mutex memory_lock;
std::unordered_map<void*, size_t> blocks;
std::set<const void*> pinned;
int64_t held_bytes = 0, peak_bytes = 0, made_bytes = 0, num_made = 0;
std::atomic<int64_t> limit_bytes{kMemory};

void free_block(void* address) {
  std::lock_guard<std::mutex> held(memory_lock);
  auto found = blocks.find(address);
  held_bytes -= found->second;
  blocks.erase(found);
  std::free(address);
}

struct Memory final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t size) override {
    if (size == 0) return {nullptr, the_device()};
    std::lock_guard<std::mutex> held(memory_lock);
    TORCH_CHECK_WITH(OutOfMemoryError, held_bytes + int64_t(size) <= limit_bytes.load(),
                     "standin out of memory. Tried to allocate ", size, " bytes");
    void* address = nullptr;
    TORCH_CHECK(posix_memalign(&address, 64, size) == 0, "posix_memalign");
    blocks[address] = size;
    held_bytes += size;
    made_bytes += size;
    ++num_made;
    peak_bytes = std::max(peak_bytes, held_bytes);
    return {disguised(address), address, &free_block, the_device()};
  }
  void copy_data(void* to, const void* from, size_t size) const override {
    std::memcpy(plain(to), plain(from), size);
  }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t = {0, 0}) override {}
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex) override {
    std::lock_guard<std::mutex> held(memory_lock);
    c10::CachingDeviceAllocator::DeviceStats stats;
    auto fill = [&](auto& all) {
      auto& one = all[0];
      one.current = held_bytes;
      one.peak = peak_bytes;
      one.allocated = made_bytes;
      one.freed = made_bytes - held_bytes;
    };
    fill(stats.allocated_bytes);
    fill(stats.reserved_bytes);
    fill(stats.active_bytes);
    fill(stats.requested_bytes);
    stats.num_device_alloc = num_made;
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex) override {
    std::lock_guard<std::mutex> held(memory_lock);
    peak_bytes = held_bytes;
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex) override {
    std::lock_guard<std::mutex> held(memory_lock);
    return {size_t(limit_bytes.load() - held_bytes), size_t(limit_bytes.load())};
  }
};

Memory memory;
REGISTER_ALLOCATOR(DeviceType::PrivateUse1, &memory);

void free_pinned(void* address) {
  std::lock_guard<std::mutex> held(memory_lock);
  pinned.erase(address);
  std::free(address);
}

struct PinnedMemory final : c10::Allocator {
  c10::DataPtr allocate(size_t size) override {
    std::lock_guard<std::mutex> held(memory_lock);
    void* address = nullptr;
    TORCH_CHECK(posix_memalign(&address, 64, size ? size : 64) == 0, "posix_memalign");
    pinned.insert(address);
    return {address, address, &free_pinned, c10::Device(c10::kCPU)};
  }
  void copy_data(void* to, const void* from, size_t size) const override { std::memcpy(to, from, size); }
};

PinnedMemory pinned_memory;

// ---- Aliases of device memory for CPU kernels --------------------------------------------------

// The CPU aliases of one operation's arguments. Arguments that share memory share it here too.
class Aliases {
 public:
  Tensor of(const Tensor& tensor) {
    for (auto& one : tensors_)
      if (one.first.is_same(tensor)) return one.second;
    c10::StorageImpl* key = tensor.storage().unsafeGetStorageImpl();
    auto found = storages_.find(key);
    if (found == storages_.end()) {
      void* address = plain(tensor.storage().data());
      c10::Storage alias(c10::Storage::use_byte_size_t(), tensor.storage().nbytes(),
                         c10::DataPtr(address, c10::Device(c10::kCPU)), c10::GetAllocator(DeviceType::CPU), true);
      found = storages_.emplace(key, One{tensor.storage(), alias, address}).first;
    }
    Tensor alias = at::detail::make_tensor<c10::TensorImpl>(
        c10::Storage(found->second.alias), c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
    if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) alias.unsafeGetTensorImpl()->set_wrapped_number(true);
    tensors_.emplace_back(tensor, described(alias, tensor));
    return alias;
  }

  // The device tensor of a result: an argument itself, a view of one, or new memory.
  Tensor back(const Tensor& result) {
    if (!result.defined() || is_ours(result)) return result;
    for (auto& one : tensors_)
      if (one.second.is_same(result)) return one.first;
    // A view has the keys of its base: one of a parameter is no inference tensor in inference mode.
    for (auto& [base, alias] : tensors_) {
      if (alias.storage().unsafeGetStorageImpl() != result.storage().unsafeGetStorageImpl()) continue;
      Tensor view = at::detail::make_tensor<c10::TensorImpl>(
          c10::TensorImpl::VIEW, c10::Storage(base.storage()), base.key_set(), result.dtype());
      return described(view, result);
    }
    auto found = made_.find(result.storage().unsafeGetStorageImpl());
    if (found == made_.end())
      found = made_.emplace(result.storage().unsafeGetStorageImpl(), adopted(result.storage())).first;
    Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
        c10::Storage(found->second), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), result.dtype());
    return described(tensor, result);
  }

  // A kernel may have resized its outputs.
  void settle() {
    for (auto& [key, one] : storages_) {
      if (one.alias.data() == one.address) continue;
      c10::Storage fresh = adopted(one.alias);
      one.device.set_data_ptr(std::move(fresh.mutable_data_ptr()));
      one.device.set_nbytes(one.alias.nbytes());
    }
    for (auto& one : tensors_)
      if (one.first.sizes() != one.second.sizes() || one.first.strides() != one.second.strides() ||
          one.first.storage_offset() != one.second.storage_offset())
        describe(one.first, one.second);
  }

 private:
  struct One {
    c10::Storage device, alias;
    void* address;
  };

  static void describe(const Tensor& tensor, const Tensor& like) {
    tensor.unsafeGetTensorImpl()->set_storage_offset(like.storage_offset());
    tensor.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides());
  }

  static Tensor described(const Tensor& tensor, const Tensor& like) {
    describe(tensor, like);
    if (like.is_conj()) tensor._set_conj(true);
    if (like.is_neg()) tensor._set_neg(true);
    return tensor;
  }

  // Device memory that holds what a CPU kernel allocated.
  static c10::Storage adopted(const c10::Storage& host) {
    c10::DataPtr data = memory.allocate(host.nbytes());
    if (host.nbytes()) std::memcpy(plain(data.get()), host.data(), host.nbytes());
    return c10::Storage(c10::Storage::use_byte_size_t(), host.nbytes(), std::move(data), &memory, true);
  }

  std::vector<std::pair<Tensor, Tensor>> tensors_;
  std::map<c10::StorageImpl*, One> storages_;
  std::map<c10::StorageImpl*, c10::Storage> made_;
};

// ---- Generators --------------------------------------------------------------------------------

// A stream of its own with the CPU's numbers.
struct DeviceGenerator final : c10::GeneratorImpl {
  DeviceGenerator()
      : c10::GeneratorImpl(the_device(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
        host(at::detail::createCPUGenerator()) {}
  void set_current_seed(uint64_t seed) override { host.set_current_seed(seed); }
  void set_offset(uint64_t) override { TORCH_CHECK(false, "this generator has no offset"); }
  uint64_t get_offset() const override { return 0; }
  uint64_t current_seed() const override { return host.current_seed(); }
  uint64_t seed() override { return host.seed(); }
  void set_state(const c10::TensorImpl& state) override { host.unsafeGetGeneratorImpl()->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return host.unsafeGetGeneratorImpl()->get_state();
  }
  DeviceGenerator* clone_impl() const override {
    auto* copy = new DeviceGenerator();
    copy->host = host.clone();
    return copy;
  }
  at::Generator host;
};

const at::Generator& default_generator() {
  static at::Generator found = at::make_generator<DeviceGenerator>();
  return found;
}

// ---- Operations without a registration of their own --------------------------------------------

// The size of their results depends on values, so that the host waits for the device.
const std::set<std::string> kDataDependent = {
    "aten::nonzero", "aten::masked_select", "aten::_unique", "aten::_unique2", "aten::unique_dim",
    "aten::unique_consecutive", "aten::unique_dim_consecutive", "aten::bincount", "aten::argwhere",
    "aten::equal", "aten::is_nonzero", "aten::histc"};

void check_host_tensor(const Tensor& tensor, const std::string& name, bool allowed) {
  TORCH_CHECK(allowed && tensor.dim() == 0,
              "Expected all tensors to be on the same device, but found at least two devices, standin:0 and ",
              tensor.device(), " (", name, ", a tensor of shape ", tensor.sizes(), ")");
}

bool waits(const std::string& name, const torch::jit::Stack& stack, size_t begin) {
  if (kDataDependent.count(name)) return true;
  // Without the size of its output, which then is the sum of the counts.
  if (name == "aten::repeat_interleave") return stack.back().isNone();
  if (name.rfind("aten::index", 0) != 0 && name.rfind("aten::_index_put", 0) != 0) return false;
  for (size_t n = begin; n < stack.size(); ++n) {
    if (!stack[n].isList()) continue;
    for (const IValue& one : stack[n].toListRef())
      if (one.isTensor() && one.toTensor().defined() && one.toTensor().scalar_type() == at::kBool) return true;
  }
  return false;
}

void run_on_aliases(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const std::string& name = schema.name();
  const size_t num_arguments = schema.arguments().size();
  const size_t begin = stack->size() - num_arguments;
  if (waits(name, *stack, begin)) count("shape", name);
  if (name.rfind("aten::index_put", 0) == 0 || name == "aten::_index_put_impl_") {
    // CUDA moves a number that is assigned by index to the device first.
    const IValue& number = (*stack)[begin + 2];
    if (number.isTensor() && !is_ours(number.toTensor())) count("to_device", name);
  }
  Aliases aliases;
  auto alias_of = [&](const Tensor& tensor, bool scalar_allowed) {
    if (!tensor.defined()) return tensor;
    if (is_ours(tensor)) return aliases.of(tensor);
    check_host_tensor(tensor, name, scalar_allowed);
    return tensor;
  };
  for (size_t n = 0; n < num_arguments; ++n) {
    IValue& value = (*stack)[begin + n];
    const auto* info = schema.arguments()[n].alias_info();
    const bool written = info != nullptr && info->isWrite();
    if (value.isTensor()) {
      value = alias_of(value.toTensor(), !written);
    } else if (value.isTensorList()) {
      c10::List<Tensor> list;
      for (const Tensor& one : value.toTensorVector()) list.push_back(alias_of(one, false));
      value = list;
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<Tensor>> list;
      for (const std::optional<Tensor>& one : value.toOptionalTensorVector())
        list.push_back(one.has_value() ? std::optional<Tensor>(alias_of(*one, false)) : one);
      value = list;
    } else if (value.isDevice()) {
      value = c10::Device(c10::kCPU);
    } else if (value.isGenerator() || (value.isNone() && schema.arguments()[n].name() == "generator")) {
      at::Generator chosen = value.isNone() ? default_generator() : value.toGenerator();
      TORCH_CHECK(chosen.device().type() == kDevice,
                  "Expected a 'standin' device type for generator but found '", chosen.device(), "' (", name, ")");
      value = static_cast<DeviceGenerator*>(chosen.unsafeGetGeneratorImpl())->host;
    }
  }
  {
    at::AutoDispatchBelowADInplaceOrView below;
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  }
  aliases.settle();
  const size_t first = stack->size() - schema.returns().size();
  for (size_t n = first; n < stack->size(); ++n) {
    IValue& value = (*stack)[n];
    if (value.isTensor()) {
      value = aliases.back(value.toTensor());
    } else if (value.isTensorList()) {
      c10::List<Tensor> list;
      for (const Tensor& one : value.toTensorVector()) list.push_back(aliases.back(one));
      value = list;
    }
  }
}

// ---- Operations that the fallback cannot serve -------------------------------------------------

Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
             std::optional<at::Device>, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(size, &memory, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                     std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(size, stride, &memory,
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           c10::dtype_or_default(dtype));
}

Tensor copy_from(const Tensor& from, const Tensor& to, bool non_blocking) {
  // CUDA queues a copy that need not be awaited, if the host's memory is pinned.
  const Tensor& on_host = is_ours(from) ? to : from;
  const bool queued = non_blocking && !is_ours(on_host) && on_host.is_pinned(kDevice);
  if (is_ours(from) != is_ours(to)) count(queued ? "queued" : is_ours(to) ? "to_device" : "to_host", "aten::copy_");
  Aliases aliases;
  at::AutoDispatchBelowADInplaceOrView below;
  Tensor target = is_ours(to) ? aliases.of(to) : to;
  target.copy_(is_ours(from) ? aliases.of(from) : from);
  return to;
}

void resize_storage(const c10::Storage& storage, size_t size) {
  c10::DataPtr data = memory.allocate(size);
  const size_t kept = std::min(size, storage.nbytes());
  if (kept) std::memcpy(plain(data.get()), plain(storage.data()), kept);
  storage.set_data_ptr(std::move(data));
  storage.set_nbytes(size);
}

const Tensor& resize_(const Tensor& self, at::IntArrayRef size, std::optional<at::MemoryFormat> format) {
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_sizes_contiguous(size);
  if (format.has_value() && *format != at::MemoryFormat::Contiguous) impl->empty_tensor_restride(*format);
  const size_t needed = (self.storage_offset() + self.numel()) * self.itemsize();
  if (needed > self.storage().nbytes()) resize_storage(self.storage(), needed);
  return self;
}

Tensor copy_from_and_resize(const Tensor& from, const Tensor& to) {
  if (to.sizes() != from.sizes()) to.resize_(from.sizes());
  return copy_from(from, to, false);
}

at::Scalar item(const Tensor& self) {
  count("item", "aten::_local_scalar_dense");
  Aliases aliases;
  return at::_local_scalar_dense(aliases.of(self));
}

Tensor& set_storage(Tensor& self, c10::Storage storage, int64_t offset, at::IntArrayRef size, at::IntArrayRef stride) {
  TORCH_CHECK(storage.device_type() == kDevice, "set_ to memory of ", storage.device(), " on standin");
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(storage));
  impl->set_storage_offset(offset);
  if (stride.empty() && !size.empty()) {
    impl->set_sizes_contiguous(size);
  } else {
    impl->set_sizes_and_strides(size, stride);
  }
  const size_t needed = at::detail::computeStorageNbytes(self.sizes(), self.strides(), self.itemsize(), offset);
  if (self.numel() && needed > self.storage().nbytes()) resize_storage(self.storage(), needed);
  return self;
}

Tensor& set_whole_storage(Tensor& self, c10::Storage storage) {
  const int64_t length = storage.nbytes() / self.itemsize();
  return set_storage(self, std::move(storage), 0, {length}, {1});
}

Tensor& set_tensor(Tensor& self, const Tensor& source) {
  return set_storage(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

Tensor& set_empty(Tensor& self) {
  c10::Storage none(c10::Storage::use_byte_size_t(), 0, memory.allocate(0), &memory, true);
  return set_storage(self, none, 0, {0}, {1});
}

void record_stream(Tensor&, c10::Stream) {}

// `module.to(device)` keeps the parameters' objects, and so the ties between them, as it does on CUDA.
bool compatible(const Tensor&, const Tensor&) { return true; }

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_aliases>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  library.impl("_copy_from", &copy_from);
  library.impl("_copy_from_and_resize", &copy_from_and_resize);
  library.impl("_local_scalar_dense", &item);
  library.impl("resize_", &resize_);
  library.impl("set_", &set_empty);
  library.impl("set_.source_Tensor", &set_tensor);
  library.impl("set_.source_Storage", &set_whole_storage);
  library.impl("set_.source_Storage_storage_offset", &set_storage);
  library.impl("record_stream", &record_stream);
  library.impl("_has_compatible_shallow_copy_type", &compatible);
}

// Some operations have a kernel for the CPU, and a formula with other bits for all other devices.
void serve_like_the_cpu() {
  static torch::Library library(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getRegistrationsForDispatchKey(c10::DispatchKey::CPU)) {
    auto op = dispatcher.findSchema(name);
    // The choice of the fused attention depends on the device.
    if (!op || name.name.rfind("aten::", 0) != 0 || name.name == "aten::_fused_sdp_choice") continue;
    if (op->hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1)) continue;
    const std::string full = name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
    library.impl(full.c_str(), torch::CppFunction::makeFromBoxedFunction<&run_on_aliases>());
  }
}

// ---- The device, its streams and events ----------------------------------------------------------

struct Guard final : c10::impl::DeviceGuardImplInterface {
  DeviceType type() const override { return kDevice; }
  c10::Device exchangeDevice(c10::Device) const override { return the_device(); }
  c10::Device getDevice() const override { return the_device(); }
  void setDevice(c10::Device device) const override {
    TORCH_CHECK(device.index() <= 0, "standin has one device, and not ", device);
  }
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream stream() const { return c10::Stream(c10::Stream::DEFAULT, the_device()); }
  c10::Stream getStream(c10::Device) const override { return stream(); }
  c10::Stream getDefaultStream(c10::Device) const override { return stream(); }
  c10::Stream getStreamFromGlobalPool(c10::Device, bool) const override { return stream(); }
  c10::Stream getNewStream(c10::Device, int) const override { return stream(); }
  c10::Stream exchangeStream(c10::Stream) const override { return stream(); }
  void record(void**, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override { count("synchronize", "stream"); }
  void synchronizeEvent(void*) const override { count("synchronize", "event"); }
  void synchronizeDevice(const c10::DeviceIndex) const override { count("synchronize", "device"); }
  double elapsedTime(void*, void*, const c10::DeviceIndex) const override { return 0.0; }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  void setCurrentDevice(c10::DeviceIndex) const override {}
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex) const override { return 0; }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override { return 0; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override { return default_generator(); }
  at::Generator getNewGenerator(c10::DeviceIndex) const override { return at::make_generator<DeviceGenerator>(); }
  at::Device getDeviceFromPtr(void*) const override { return the_device(); }
  bool isPinnedPtr(const void* address) const override {
    std::lock_guard<std::mutex> held(memory_lock);
    return pinned.count(address) > 0;
  }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned_memory; }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t size) const override {
    resize_storage(storage, size);
  }
};

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  static Hooks hooks;
  at::RegisterPrivateUse1HooksInterface(&hooks);
  serve_like_the_cpu();
  module.def("default_generator", [] { return default_generator(); });
  module.def("reset_counts", [] {
    std::lock_guard<std::mutex> held(count_lock);
    counts.clear();
  });
  module.def("counts", [] {
    std::lock_guard<std::mutex> held(count_lock);
    return counts;
  });
  module.def("listen", [](pybind11::object function) {
    Py_XDECREF(listener);
    listener = function.is_none() ? nullptr : function.release().ptr();
  });
  module.def("set_memory", [](int64_t size) { limit_bytes = size; });
}
