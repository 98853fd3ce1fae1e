// Calls of registered operations by name, whose arguments are prepared once, and the values between them: the
// parts of an interpreter of exported programs. Autograd and autocast record a call as they record one of Python.
#include "boundary.h"

#include <ATen/Functions.h>
#include <ATen/ScalarOps.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <dlfcn.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

using c10::IValue;
using c10::TypeKind;
using c10::TypePtr;
using dtrain::guard;
using torch::jit::Stack;

extern "C" {

// The kinds of an argument. Keep in step with `Encoded::of` in src/program.rs.
enum DtArgumentTag : int32_t {
  DT_ARGUMENT_NONE = 0,
  DT_ARGUMENT_VALUE = 1,
  DT_ARGUMENT_VALUES = 2,
  DT_ARGUMENT_INT = 3,
  DT_ARGUMENT_INTS = 4,
  DT_ARGUMENT_FLOAT = 5,
  DT_ARGUMENT_FLOATS = 6,
  DT_ARGUMENT_BOOL = 7,
  DT_ARGUMENT_BOOLS = 8,
  DT_ARGUMENT_STRING = 9,
  DT_ARGUMENT_DEVICE = 10,
};

// One argument. `slots` has an entry for each element: the number of a value of the frame, -1 for none (then
// `numbers` has the element), or -2 - i for the fixed tensor i.
struct DtArgument {
  DtText name;
  int32_t tag;
  DtText text;
  const int64_t* numbers;
  const int64_t* slots;
  const double* reals;
  size_t count;
};

struct DtArguments {
  const DtArgument* data;
  size_t count;
};

struct DtNumbers {
  const int64_t* data;
  size_t count;
};

// The results of a call, flattened: `counts` has -1 for a single value, or the length of a list; `slots` has the
// number of each value in the frame, or -1 for one that nothing uses. `frees` are the values not used later.
struct DtResults {
  DtNumbers counts, slots, frees;
};
}

namespace dtrain::program {

struct Frame {
  std::vector<IValue> values;
};

constexpr int64_t kAbsent = -1;

// Elements of an argument that are known only in a call.
struct Patch {
  size_t position;
  TypePtr type;
  int32_t tag;
  std::vector<int64_t> slots, numbers;
  // The length of a list that takes one number for all elements.
  std::optional<int32_t> repeat;
};

constexpr auto kOverflow = "a size is too large";

int64_t sum(int64_t a, int64_t b) {
  int64_t result = 0;
  TORCH_CHECK_VALUE(!__builtin_add_overflow(a, b, &result), kOverflow);
  return result;
}

int64_t difference(int64_t a, int64_t b) {
  int64_t result = 0;
  TORCH_CHECK_VALUE(!__builtin_sub_overflow(a, b, &result), kOverflow);
  return result;
}

int64_t product(int64_t a, int64_t b) {
  int64_t result = 0;
  TORCH_CHECK_VALUE(!__builtin_mul_overflow(a, b, &result), kOverflow);
  return result;
}

int64_t floor_div(int64_t a, int64_t b) {
  TORCH_CHECK_VALUE(b != 0, "a size is divided by zero");
  if (b == -1) return difference(0, a);
  const int64_t quotient = a / b;
  return (a % b != 0 && ((a < 0) != (b < 0))) ? quotient - 1 : quotient;
}

double real(const IValue& value) {
  if (value.isBool()) return value.toBool() ? 1.0 : 0.0;
  return value.isInt() ? static_cast<double>(value.toInt()) : value.toDouble();
}

int64_t whole(const IValue& value) { return value.isBool() ? int64_t{value.toBool()} : value.toInt(); }

bool truth(const IValue& value) { return value.isBool() ? value.toBool() : real(value) != 0.0; }

bool are_whole(const IValue& a, const IValue& b) { return !a.isDouble() && !b.isDouble(); }

// The arguments of a builtin.
struct Numbers {
  const std::vector<IValue>& values;
  const IValue& operator[](size_t index) const {
    TORCH_CHECK_VALUE(index < values.size(), "an argument is missing");
    return values[index];
  }
};

using Builtin = std::function<IValue(const Numbers&)>;

template <typename Whole, typename Real>
Builtin arithmetic(Whole of_whole, Real of_real) {
  return [=](const Numbers& x) -> IValue {
    return are_whole(x[0], x[1]) ? IValue(of_whole(whole(x[0]), whole(x[1]))) : IValue(of_real(real(x[0]), real(x[1])));
  };
}

template <typename Compare>
Builtin comparison(Compare compare) {
  return [=](const Numbers& x) -> IValue {
    return are_whole(x[0], x[1]) ? compare(whole(x[0]), whole(x[1])) : compare(real(x[0]), real(x[1]));
  };
}

int64_t power(int64_t base, int64_t exponent) {
  TORCH_CHECK_VALUE(exponent >= 0, "a size has a negative exponent");
  if (base == 0 || base == 1) return exponent == 0 ? 1 : base;
  if (base == -1) return exponent % 2 == 0 ? 1 : -1;
  int64_t result = 1;
  // Other bases overflow after 63 products at most.
  for (int64_t index = 0; index < exponent; ++index) result = product(result, base);
  return result;
}

// Python's operations on sizes and other numbers, by the names in exported programs.
const std::map<std::string, Builtin>& builtins() {
  static const auto negated = [](const Numbers& x) -> IValue {
    return x[0].isDouble() ? IValue(-x[0].toDouble()) : IValue(difference(0, whole(x[0])));
  };
  static const auto to_whole = [](double (*round)(double)) {
    return [round](const Numbers& x) -> IValue {
      if (!x[0].isDouble()) return IValue(whole(x[0]));
      const double rounded = round(x[0].toDouble());
      TORCH_CHECK_VALUE(rounded >= -0x1p63 && rounded < 0x1p63, kOverflow);
      return IValue(static_cast<int64_t>(rounded));
    };
  };
  static const auto root = [](const Numbers& x) -> IValue { return std::sqrt(real(x[0])); };
  static const auto modulo = arithmetic([](int64_t a, int64_t b) { return b == -1 ? int64_t{0} : a - floor_div(a, b) * b; },
                                        [](double a, double b) { return a - std::floor(a / b) * b; });
  static const auto greatest = arithmetic([](int64_t a, int64_t b) { return std::max(a, b); },
                                          [](double a, double b) { return std::max(a, b); });
  static const auto least = arithmetic([](int64_t a, int64_t b) { return std::min(a, b); },
                                       [](double a, double b) { return std::min(a, b); });
  static const std::map<std::string, Builtin> all{
      {"_operator.add", arithmetic(sum, std::plus<double>())},
      {"_operator.sub", arithmetic(difference, std::minus<double>())},
      {"_operator.mul", arithmetic(product, std::multiplies<double>())},
      {"_operator.floordiv", arithmetic(floor_div, [](double a, double b) { return std::floor(a / b); })},
      {"_operator.mod", modulo},
      {"_operator.pow", arithmetic(power, [](double a, double b) { return std::pow(a, b); })},
      {"_operator.truediv", [](const Numbers& x) -> IValue { return real(x[0]) / real(x[1]); }},
      {"_operator.neg", negated},
      {"_operator.pos", [](const Numbers& x) -> IValue { return x[0]; }},
      {"_operator.eq", comparison([](auto a, auto b) { return a == b; })},
      {"_operator.ne", comparison([](auto a, auto b) { return a != b; })},
      {"_operator.lt", comparison([](auto a, auto b) { return a < b; })},
      {"_operator.le", comparison([](auto a, auto b) { return a <= b; })},
      {"_operator.gt", comparison([](auto a, auto b) { return a > b; })},
      {"_operator.ge", comparison([](auto a, auto b) { return a >= b; })},
      {"_operator.and_", [](const Numbers& x) -> IValue { return truth(x[0]) && truth(x[1]); }},
      {"_operator.or_", [](const Numbers& x) -> IValue { return truth(x[0]) || truth(x[1]); }},
      {"torch.sym_not", [](const Numbers& x) -> IValue { return !truth(x[0]); }},
      {"torch.sym_int", to_whole(std::trunc)},
      {"torch.sym_float", [](const Numbers& x) -> IValue { return real(x[0]); }},
      {"torch.sym_ite", [](const Numbers& x) -> IValue { return truth(x[0]) ? x[1] : x[2]; }},
      {"torch.sym_max", greatest},
      {"torch.sym_min", least},
      {"torch.sym_sqrt", root},
      {"torch._sym_sqrt", root},
      {"math.trunc", to_whole(std::trunc)},
      {"math.floor", to_whole(std::floor)},
      {"math.ceil", to_whole(std::ceil)},
  };
  return all;
}

TypePtr without_optional(const TypePtr& type) {
  return type->kind() == TypeKind::OptionalType ? type->castRaw<c10::OptionalType>()->getElementType() : type;
}

bool takes_list(const TypePtr& type) { return without_optional(type)->kind() == TypeKind::ListType; }

bool is_number(const IValue& value) { return value.isInt() || value.isDouble() || value.isBool(); }

// Converts a single value to what the schema takes, as Python's binding does.
IValue convert(IValue value, const TypePtr& declared) {
  if (value.isNone()) return value;
  const auto type = without_optional(declared);
  const auto kind = type->kind();
  if (kind == TypeKind::TensorType && is_number(value)) {
    auto number = at::scalar_to_tensor(value.toScalar());
    number.unsafeGetTensorImpl()->set_wrapped_number(true);
    return number;
  }
  if (kind == TypeKind::FloatType && is_number(value)) return real(value);
  if (kind == TypeKind::IntType && value.isBool()) return whole(value);
  return value;
}

// Builds a list of the schema's element type from converted elements. A schema such as `int[2]` also takes one
// number for all elements.
IValue make_list(const std::vector<IValue>& values, const TypePtr& declared, std::optional<int32_t> repeat) {
  const auto type = without_optional(declared);
  TORCH_CHECK_TYPE(type->kind() == TypeKind::ListType, "a list was given for ", type->repr_str());
  const auto element = type->castRaw<c10::ListType>()->getElementType();
  c10::impl::GenericList list(element);
  for (int32_t times = repeat.value_or(1); times > 0; --times)
    for (const auto& value : values) list.push_back(convert(value, element));
  return list;
}

// A prepared call of an operation or of a builtin.
struct Call {
  std::optional<c10::OperatorHandle> op;
  Builtin builtin;
  Stack prepared;
  std::vector<Patch> patches;
  std::vector<int64_t> counts, slots, frees;
  // Whether a single value takes the dtype of the tensor that it is put into.
  bool casts_value = false;

  static IValue element(const Frame& frame, const Patch& patch, size_t index) {
    const auto slot = patch.slots[index];
    if (slot != kAbsent) return frame.values.at(static_cast<size_t>(slot));
    return patch.tag == DT_ARGUMENT_VALUES ? IValue() : IValue(patch.numbers[index]);
  }

  static IValue patched(const Frame& frame, const Patch& patch, const Stack& prepared) {
    if (patch.tag == DT_ARGUMENT_INT && takes_list(patch.type)) return make_list({element(frame, patch, 0)}, patch.type, patch.repeat);
    if (patch.tag != DT_ARGUMENT_INTS && patch.tag != DT_ARGUMENT_VALUES) return convert(element(frame, patch, 0), patch.type);
    std::vector<IValue> values;
    values.reserve(patch.slots.size());
    // Fixed tensors of a list are in the prepared list.
    for (size_t index = 0; index < patch.slots.size(); ++index)
      values.push_back(patch.slots[index] < kAbsent ? prepared[patch.position].toListRef()[index] : element(frame, patch, index));
    return make_list(values, patch.type, std::nullopt);
  }

  void run(Frame& frame) const {
    Stack stack(prepared);
    for (const auto& patch : patches) stack[patch.position] = patched(frame, patch, prepared);
    // The operation alone holds values that nothing uses later.
    for (const auto slot : frees) frame.values.at(static_cast<size_t>(slot)) = IValue();
    if (casts_value) cast_value(stack);
    if (op) {
      op->callBoxed(stack);
    } else {
      IValue result = builtin({stack});
      stack.clear();
      stack.push_back(std::move(result));
    }
    keep(frame, stack);
  }

  // Python gives a number the dtype of the tensor at each call; an export has it as a tensor of the dtype at the export.
  static void cast_value(Stack& stack) {
    const auto& target = stack[0].toTensor();
    const auto& value = stack[2].toTensor();
    if (value.dim() == 0 && value.scalar_type() != target.scalar_type()) stack[2] = value.to(target.scalar_type());
  }

  void keep(Frame& frame, Stack& stack) const {
    TORCH_CHECK(stack.size() >= counts.size(), "the operation returned ", stack.size(), " values, and the program uses ",
                counts.size());
    size_t next = 0;
    const auto set = [&](IValue value) {
      const auto slot = slots.at(next++);
      if (slot != kAbsent) frame.values.at(static_cast<size_t>(slot)) = std::move(value);
    };
    for (size_t index = 0; index < counts.size(); ++index) {
      if (counts[index] < 0) {
        set(std::move(stack[index]));
        continue;
      }
      const auto list = stack[index].toListRef();
      TORCH_CHECK(list.size() == static_cast<size_t>(counts[index]), "the operation returned ", list.size(),
                  " tensors, and the program uses ", counts[index]);
      for (const auto& value : list) set(value);
    }
  }
};

std::vector<int64_t> copied(DtNumbers numbers) { return {numbers.data, numbers.data + numbers.count}; }

// Translates the arguments of one call.
struct Preparation {
  Call& call;
  const std::vector<at::Tensor>& fixed;
  int32_t device;

  IValue element(const DtArgument& argument, size_t index) const {
    const auto slot = argument.slots[index];
    if (slot < kAbsent) return fixed.at(static_cast<size_t>(-2 - slot));
    return argument.tag == DT_ARGUMENT_INT || argument.tag == DT_ARGUMENT_INTS ? IValue(argument.numbers[index]) : IValue();
  }

  std::vector<IValue> elements(const DtArgument& argument) const {
    std::vector<IValue> values;
    for (size_t index = 0; index < argument.count; ++index) {
      switch (argument.tag) {
        case DT_ARGUMENT_FLOATS: values.emplace_back(argument.reals[index]); break;
        case DT_ARGUMENT_BOOLS: values.emplace_back(argument.numbers[index] != 0); break;
        default: values.push_back(element(argument, index));
      }
    }
    return values;
  }

  IValue value(const DtArgument& argument, const TypePtr& type, std::optional<int32_t> repeat) const {
    switch (argument.tag) {
      case DT_ARGUMENT_NONE: return {};
      case DT_ARGUMENT_VALUE:
      case DT_ARGUMENT_INT:
        if (takes_list(type) && argument.tag == DT_ARGUMENT_INT) return make_list({element(argument, 0)}, type, repeat);
        return convert(element(argument, 0), type);
      case DT_ARGUMENT_FLOAT: return convert(argument.reals[0], type);
      case DT_ARGUMENT_BOOL: return convert(argument.numbers[0] != 0, type);
      case DT_ARGUMENT_STRING: return argument.text.string();
      case DT_ARGUMENT_DEVICE: return dtrain::device(device);
      default: return make_list(elements(argument), type, std::nullopt);
    }
  }

  void add(const DtArgument& argument, size_t position, const TypePtr& type, std::optional<int32_t> repeat) const {
    call.prepared[position] = value(argument, type, repeat);
    const bool by_slot = argument.slots != nullptr &&
                         std::any_of(argument.slots, argument.slots + argument.count, [](int64_t slot) { return slot >= 0; });
    if (!by_slot) return;
    Patch patch{position, type, argument.tag, {argument.slots, argument.slots + argument.count}, {}, repeat};
    if (argument.numbers != nullptr) patch.numbers.assign(argument.numbers, argument.numbers + argument.count);
    call.patches.push_back(std::move(patch));
  }
};

// Returns the number of values of an enumeration, else 0. Libtorch uses them as indexes without a check.
int64_t values_of(const TypePtr& real_type) {
  switch (without_optional(real_type)->kind()) {
    case TypeKind::ScalarTypeType: return static_cast<int64_t>(at::ScalarType::Undefined);
    case TypeKind::MemoryFormatType: return static_cast<int64_t>(at::MemoryFormat::NumOptions);
    case TypeKind::LayoutType: return static_cast<int64_t>(at::Layout::NumOptions);
    default: return 0;
  }
}

// Returns whether an argument of this type is a constant among the enumeration's values, or none.
bool is_known(const DtArgument& argument, const TypePtr& real_type) {
  const auto known = values_of(real_type);
  if (known == 0 || argument.tag == DT_ARGUMENT_NONE) return true;
  return argument.tag == DT_ARGUMENT_INT && argument.slots[0] == kAbsent && argument.numbers[0] >= 0 && argument.numbers[0] < known;
}

void prepare_operation(const Preparation& preparation, const c10::OperatorHandle& op, DtArguments arguments) {
  const auto& schema = op.schema();
  auto& prepared = preparation.call.prepared;
  std::vector<bool> given(schema.arguments().size(), false);
  for (const auto& argument : schema.arguments()) prepared.push_back(argument.default_value().value_or(IValue()));
  for (size_t index = 0; index < arguments.count; ++index) {
    const auto& argument = arguments.data[index];
    const auto position = schema.argumentIndexWithName(argument.name.string());
    if (!position)
      throw dtrain::Failure(DT_INVALID_ARGUMENT, "the operation has no argument `" + argument.name.string() + "`");
    const auto at = static_cast<size_t>(*position);
    if (given[at]) throw dtrain::Failure(DT_INVALID_ARGUMENT, "the argument `" + argument.name.string() + "` is given twice");
    if (!is_known(argument, schema.arguments()[at].real_type()))
      throw dtrain::Failure(DT_INVALID_ARGUMENT, "the argument `" + argument.name.string() + "` has an unknown value");
    preparation.add(argument, at, schema.arguments()[at].type(), schema.arguments()[at].N());
    given[at] = true;
  }
  for (size_t at = 0; at < given.size(); ++at)
    if (!given[at] && !schema.arguments()[at].default_value() && schema.arguments()[at].type()->kind() != TypeKind::OptionalType)
      throw dtrain::Failure(DT_INVALID_ARGUMENT, "the argument `" + schema.arguments()[at].name() + "` is missing");
}

std::optional<c10::OperatorHandle> find_operation(DtText name, DtText overload) {
  return c10::Dispatcher::singleton().findSchema({name.string(), overload.string()});
}

} // namespace dtrain::program

namespace program = dtrain::program;

extern "C" {

int32_t dt_frame_new(size_t values, void** out, DtError* error) {
  return guard(error, [&] { *out = new program::Frame{std::vector<IValue>(values)}; });
}

void dt_frame_free(program::Frame* frame) { delete frame; }

int32_t dt_frame_set(program::Frame* frame, size_t slot, const void* tensor, DtError* error) {
  return guard(error, [&] { frame->values.at(slot) = dtrain::tensor(tensor); });
}

// Copies values that are not tensors, such as sizes.
int32_t dt_frame_copy(program::Frame* to, const program::Frame* from, DtNumbers slots, DtError* error) {
  return guard(error, [&] {
    for (size_t index = 0; index < slots.count; ++index) {
      const auto slot = static_cast<size_t>(slots.data[index]);
      to->values.at(slot) = from->values.at(slot);
    }
  });
}

int32_t dt_frame_get(const program::Frame* frame, size_t slot, void** out, DtError* error) {
  return guard(error, [&] {
    const auto& value = frame->values.at(slot);
    TORCH_CHECK_TYPE(value.isTensor() && value.toTensor().defined(), "the value is not a tensor");
    *out = new at::Tensor(value.toTensor());
  });
}

int32_t dt_frame_clear(program::Frame* frame, DtNumbers slots, DtError* error) {
  return guard(error, [&] {
    for (size_t index = 0; index < slots.count; ++index) frame->values.at(static_cast<size_t>(slots.data[index])) = IValue();
  });
}

// Prepares a call of the operation `name` (such as aten::add) with `overload`, or of a builtin without overload.
int32_t dt_call_new(DtText name, DtText overload, DtArguments arguments, DtTensors fixed, int32_t device, DtResults results,
                    void** out, DtError* error) {
  return guard(error, [&] {
    auto call = std::make_unique<program::Call>();
    const auto tensors = fixed.list();
    const program::Preparation preparation{*call, tensors, device};
    if (const auto known = program::builtins().find(name.string()); known != program::builtins().end()) {
      call->builtin = known->second;
      call->prepared.resize(arguments.count);
      for (size_t index = 0; index < arguments.count; ++index)
        preparation.add(arguments.data[index], index, c10::AnyType::get(), std::nullopt);
    } else {
      call->op = program::find_operation(name, overload);
      if (!call->op) throw dtrain::Failure(DT_NOT_IMPLEMENTED, "libtorch has no such operation");
      program::prepare_operation(preparation, *call->op, arguments);
      call->casts_value = name.string() == "aten::index_put" || name.string() == "aten::index_put_";
    }
    call->counts = program::copied(results.counts);
    call->slots = program::copied(results.slots);
    call->frees = program::copied(results.frees);
    *out = call.release();
  });
}

void dt_call_free(program::Call* call) { delete call; }

int32_t dt_call_run(const program::Call* call, program::Frame* frame, DtError* error) {
  return guard(error, [&] { call->run(*frame); });
}

// Returns what an operation does, as bits: it draws random numbers, it writes to `argument`, its only result is that
// argument, a result may share the argument's memory, autograd has no kernel for it.
int32_t dt_operation_traits(DtText name, DtText overload, DtText argument, int32_t* traits, DtError* error) {
  return guard(error, [&] {
    *traits = 0;
    const auto op = program::find_operation(name, overload);
    if (!op) return;
    if (op->hasTag(at::Tag::nondeterministic_seeded)) *traits |= 1;
    using c10::DispatchKey;
    const auto recording = {DispatchKey::Autograd, DispatchKey::AutogradCPU, DispatchKey::AutogradCUDA, DispatchKey::CompositeImplicitAutograd};
    if (std::none_of(recording.begin(), recording.end(), [&](auto key) { return op->hasKernelForDispatchKey(key); })) *traits |= 16;
    const auto& schema = op->schema();
    const auto position = schema.argumentIndexWithName(argument.string());
    const auto shares = [](const c10::Argument& of) { return of.alias_info() != nullptr; };
    const auto writes = [&](const c10::Argument& of) { return shares(of) && of.alias_info()->isWrite(); };
    if (!position) return;
    const auto& of = schema.arguments()[static_cast<size_t>(*position)];
    if (shares(of) && std::any_of(schema.returns().begin(), schema.returns().end(), shares)) *traits |= 8;
    if (!writes(of)) return;
    *traits |= 2;
    if (schema.returns().size() == 1 && writes(schema.returns()[0])) *traits |= 4;
  });
}

// Returns the schemas of all operations, one a line.
int32_t dt_operation_schemas(DtBytes* schemas, DtError* error) {
  return guard(error, [&] {
    std::ostringstream text;
    for (const auto& name : c10::Dispatcher::singleton().getAllOpNames())
      if (const auto op = c10::Dispatcher::singleton().findSchema(name)) text << op->schema() << '\n';
    const auto all = text.str();
    if (!schemas->set(all.data(), all.size())) throw std::bad_alloc();
  });
}

// Loads a shared library for the rest of the process; its initialisers register operations.
int32_t dt_library_load(DtText path, DtError* error) {
  return guard(error, [&] {
    if (dlopen(path.string().c_str(), RTLD_NOW | RTLD_LOCAL) != nullptr) return;
    const char* reason = dlerror();
    throw dtrain::Failure(DT_LIBRARY_MISSING, reason != nullptr ? reason : "it cannot be loaded");
  });
}

} // extern "C"
