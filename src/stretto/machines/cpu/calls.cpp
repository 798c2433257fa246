// Library calls without Python: ATen operators through the C interface that libtorch keeps stable
// (torch/csrc/inductor/aoti_torch/c/shim.h, torch/csrc/stable/c/shim.h). Its functions come in a
// table, so that this file needs no headers of torch and links nothing.
//
// A result is a tensor that torch allocates. If only library calls read it, it is *held*: they get
// the tensor, and nothing is copied. All other results are copied to the program's memory.
// machines/cpu/calls.py makes the tables and decides which buffers may be held.
#include <atomic>
#include <cstdint>
#include <cstring>
#include <vector>

namespace {

using Handle = void*;    // AtenTensorHandle: owns a reference
using Word = uint64_t;   // StableIValue

struct Torch {  // filled by stretto_calls_configure, in this order; nonzero results are errors
    int32_t (*dispatch)(const char*, const char*, Word*);
    int32_t (*add)(Handle, Handle, double, Handle*);
    int32_t (*from_memory)(void*, int64_t, const int64_t*, const int64_t*, int64_t, int32_t, int32_t,
                           int32_t, Handle*);
    int32_t (*remove)(Handle);
    int32_t (*again)(Handle, Handle*);
    int32_t (*data)(Handle, void**);
    int32_t (*rank)(Handle, int64_t*);
    int32_t (*sizes)(Handle, int64_t**);
    int32_t (*strides)(Handle, int64_t**);
    int32_t (*dtype)(Handle, int32_t*);
    int32_t (*copy)(Handle, Handle, int32_t);
    int32_t (*new_list)(size_t, void**);
    int32_t (*push)(void*, Word);
    int32_t (*remove_list)(void*);
    bool (*has_grad)();
    void (*set_grad)(bool);
};
Torch torch;

// Encoding of an argument by calls.py: a code, followed by its data.
enum Code : int64_t {
    WORD = 0,    // the word itself
    TENSOR = 1,  // the number of an operand
    LIST = 2,    // the number of items, and the items
    SOME = 3,    // the value of an optional argument
};

struct Operand {
    int64_t slot = -1;  // slot of the held tensor; -1: in the program's memory
    int32_t dtype = 0;
    int64_t nbytes = 0;
    std::vector<int64_t> dims, strides;
};

struct Call {
    bool native = false;  // false: Python runs it
    bool is_add = false;
    const char* name = "";
    const char* overload = "";
    int64_t inputs = 0;   // number of inputs; the operands after them are results
    int64_t arguments = 0;
    std::vector<Operand> operands;
    std::vector<int64_t> code;
};

struct Table {
    std::vector<Call> calls;
    std::vector<int64_t> readers;  // by slot: number of calls that read it after it is written; -1: unknown
};

struct View {  // a tensor over the program's memory
    void* memory = nullptr;
    Handle tensor = nullptr;
};

struct Held {
    Handle tensor = nullptr;  // null: the contents of the buffer are in the program's memory
    std::atomic<int64_t> left{0};
};

// State of one frame, for one run at a time. Units that touch the same buffer wait for each other.
struct State {
    const Table* table;
    std::vector<Held> held;
    std::vector<std::vector<View>> views;  // by call and operand
    explicit State(const Table* table) : table(table), held(table->readers.size()) {
        for (const Call& call : table->calls) views.emplace_back(call.operands.size());
    }
};

void drop(Handle& tensor) {
    if (tensor != nullptr) torch.remove(tensor);
    tensor = nullptr;
}

Handle view(State& state, int64_t number, int64_t index, void* memory) {
    View& known = state.views[number][index];
    if (known.tensor != nullptr && known.memory == memory) return known.tensor;
    drop(known.tensor);
    const Operand& operand = state.table->calls[number].operands[index];
    known.memory = memory;
    if (torch.from_memory(memory, int64_t(operand.dims.size()), operand.dims.data(),
                          operand.strides.data(), 0, operand.dtype, 0, 0, &known.tensor) != 0)
        known.tensor = nullptr;
    return known.tensor;
}

// An operand as a tensor that the state still owns; null: torch refuses.
Handle tensor_of(State& state, int64_t number, int64_t index, void** memory) {
    int64_t slot = state.table->calls[number].operands[index].slot;
    if (slot >= 0 && state.held[slot].tensor != nullptr) return state.held[slot].tensor;
    return view(state, number, index, memory[index]);
}

// Decodes an argument into words. The receiver of the words owns what they refer to.
struct Reader {
    State& state;
    int64_t number;
    void** memory;
    const int64_t* code;
    bool failed = false;

    Word next() {
        switch (*code++) {
            case TENSOR: {
                Handle tensor = tensor_of(state, number, *code++, memory), again = nullptr;
                failed |= tensor == nullptr || torch.again(tensor, &again) != 0;
                return reinterpret_cast<Word>(again);
            }
            case LIST: {
                void* list = nullptr;
                int64_t count = *code++;
                failed |= torch.new_list(size_t(count), &list) != 0;
                for (int64_t i = 0; i < count; ++i) {
                    Word item = next();
                    if (!failed) failed |= torch.push(list, item) != 0;
                }
                return reinterpret_cast<Word>(list);
            }
            case SOME: return reinterpret_cast<Word>(new Word(next()));
            default: return Word(*code++);
        }
    }
};

// Turns off gradient recording on this thread for one call.
struct WithoutGradients {
    bool grad;
    WithoutGradients() : grad(torch.has_grad()) {
        if (grad) torch.set_grad(false);
    }
    ~WithoutGradients() {
        if (grad) torch.set_grad(true);
    }
};

bool dispatched(State& state, int64_t number, void** memory, std::vector<Word>& stack) {
    const Call& call = state.table->calls[number];
    if (call.is_add) {
        Handle result = nullptr, one = tensor_of(state, number, call.code[1], memory),
               other = tensor_of(state, number, call.code[3], memory);
        if (one == nullptr || other == nullptr || torch.add(one, other, 1.0, &result) != 0)
            return false;
        stack[0] = reinterpret_cast<Word>(result);
        return true;
    }
    Reader reader{state, number, memory, call.code.data()};
    for (int64_t i = 0; i < call.arguments; ++i) stack[i] = reader.next();
    return !reader.failed && torch.dispatch(call.name, call.overload, stack.data()) == 0;
}

// True if a tensor can replace a buffer: it is contiguous, with the same dims and dtype.
bool fits(Handle tensor, const Operand& operand) {
    int64_t rank = 0, *sizes = nullptr, *strides = nullptr;
    int32_t dtype = 0;
    if (torch.rank(tensor, &rank) != 0 || torch.sizes(tensor, &sizes) != 0 ||
        torch.strides(tensor, &strides) != 0 || torch.dtype(tensor, &dtype) != 0)
        return false;
    if (rank != int64_t(operand.dims.size()) || dtype != operand.dtype) return false;
    for (int64_t i = 0; i < rank; ++i) {
        if (sizes[i] != operand.dims[i]) return false;
        if (sizes[i] != 1 && strides[i] != operand.strides[i]) return false;
    }
    return true;
}

// True if a result is in the program's memory, which will be overwritten later.
bool is_view(Handle result, const Call& call, void** memory) {
    void* data = nullptr;
    if (torch.data(result, &data) != 0) return true;
    for (int64_t i = 0; i < call.inputs; ++i) {
        const char* first = static_cast<char*>(memory[i]);
        if (data >= first && data < first + call.operands[i].nbytes) return true;
    }
    return false;
}

// Holds a result, or copies it to the program's memory. False: torch refuses.
bool placed(State& state, int64_t number, int64_t index, Handle result, void** memory) {
    const Call& call = state.table->calls[number];
    const Operand& operand = call.operands[index];
    if (operand.slot >= 0) {
        Held& held = state.held[operand.slot];
        drop(held.tensor);
        if (fits(result, operand) && !is_view(result, call, memory)) {
            int64_t readers = state.table->readers[operand.slot];
            held.left.store(readers, std::memory_order_relaxed);
            if (readers != 0) held.tensor = result;
            if (readers == 0) torch.remove(result);
            return true;
        }
    }
    Handle target = view(state, number, index, memory[index]);
    bool copied = target != nullptr && torch.copy(target, result, 0) == 0;
    torch.remove(result);
    return copied;
}

// Called after a call has read its operands: releases those that no other call will read.
void release(State& state, const Call& call) {
    for (int64_t i = 0; i < call.inputs; ++i) {
        int64_t slot = call.operands[i].slot;
        if (slot < 0 || state.table->readers[slot] < 0) continue;
        bool repeated = false;
        for (int64_t j = 0; j < i; ++j) repeated |= call.operands[j].slot == slot;
        if (repeated) continue;
        Held& held = state.held[slot];
        if (held.left.fetch_sub(1, std::memory_order_acq_rel) == 1) drop(held.tensor);
    }
}

// Called before Python runs a call: copies its held inputs to the program's memory, where its results
// will be, too.
void handed_over(State& state, const Call& call, void** memory) {
    for (size_t i = 0; i < call.operands.size(); ++i) {
        int64_t slot = call.operands[i].slot;
        if (slot < 0 || state.held[slot].tensor == nullptr) continue;
        void* data = nullptr;
        bool is_input = int64_t(i) < call.inputs;
        if (is_input && torch.data(state.held[slot].tensor, &data) == 0 && data != nullptr)
            std::memcpy(memory[i], data, size_t(call.operands[i].nbytes));
        if (!is_input) drop(state.held[slot].tensor);
    }
}

void clear(State& state) {
    for (Held& held : state.held) {
        drop(held.tensor);
        held.left.store(0, std::memory_order_relaxed);
    }
}

Operand read_operand(const int64_t*& words) {
    Operand operand;
    operand.slot = *words++;
    operand.dtype = int32_t(*words++);
    operand.nbytes = *words++;
    int64_t rank = *words++;
    operand.dims.assign(words, words + rank);
    words += rank;
    operand.strides.assign(size_t(rank), 1);
    for (int64_t i = rank - 2; i >= 0; --i) {
        int64_t dim = operand.dims[i + 1];
        operand.strides[i] = operand.strides[i + 1] * (dim > 1 ? dim : 1);
    }
    return operand;
}

Call read_call(const int64_t*& words) {
    Call call;
    call.native = *words++ != 0;
    call.is_add = *words++ != 0;
    call.name = reinterpret_cast<const char*>(*words++);
    call.overload = reinterpret_cast<const char*>(*words++);
    call.inputs = *words++;
    call.arguments = *words++;
    for (int64_t left = *words++; left > 0; --left) call.operands.push_back(read_operand(words));
    int64_t length = *words++;
    call.code.assign(words, words + length);
    words += length;
    return call;
}

}  // namespace

extern "C" void stretto_calls_configure(void** functions) {
    std::memcpy(&torch, functions, sizeof(torch));
}

// Reads a table of calls from the words that calls.py writes.
extern "C" void* stretto_calls_table(const int64_t* words) {
    auto* table = new Table;
    int64_t slots = *words++;
    table->readers.assign(words, words + slots);
    words += slots;
    for (int64_t left = *words++; left > 0; --left) table->calls.push_back(read_call(words));
    return table;
}

extern "C" void stretto_calls_remove_table(void* table) { delete static_cast<Table*>(table); }

extern "C" void* stretto_calls_state(void* table) { return new State(static_cast<Table*>(table)); }

extern "C" void stretto_calls_remove_state(void* handle) {
    auto* state = static_cast<State*>(handle);
    clear(*state);
    for (auto& views : state->views)
        for (View& view : views) drop(view.tensor);
    delete state;
}

// Drops the tensors that a run has left.
extern "C" void stretto_calls_clear(void* state) { clear(*static_cast<State*>(state)); }

// Runs a call without Python. `memory`: addresses of its operands.
// Nonzero: Python must run it; all its operands are then in the program's memory.
extern "C" int32_t stretto_calls_run(void* handle, int64_t number, void** memory) {
    State& state = *static_cast<State*>(handle);
    const Call& call = state.table->calls[number];
    if (call.native) {
        int64_t results = int64_t(call.operands.size()) - call.inputs;
        std::vector<Word> stack(size_t(call.arguments > results ? call.arguments : results));
        WithoutGradients setting;
        bool done = dispatched(state, number, memory, stack);
        bool made = done;
        for (int64_t i = 0; made && i < results; ++i) {
            auto result = reinterpret_cast<Handle>(stack[i]);
            if (done)
                done = placed(state, number, call.inputs + i, result, memory);
            else
                drop(result);
        }
        if (done) {
            release(state, call);
            return 0;
        }
    }
    handed_over(state, call, memory);
    return 1;
}

// Called after Python has run a call.
extern "C" void stretto_calls_release(void* handle, int64_t number) {
    State& state = *static_cast<State*>(handle);
    release(state, state.table->calls[number]);
}
