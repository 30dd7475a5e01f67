// $name for C++17, on top of its C header. Made by funcgrad.
//
//    $signature
//
//     ${name}_function f;
//     f.input<float>("x")[0] = 1;
//     f.run();
//     float y = f.output<float>(0)[0];

#ifndef ${guard}_HPP
#define ${guard}_HPP

#include <complex>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "${name}.h"

// What went wrong, with the status of the C function that said so.
class ${name}_error : public std::runtime_error {
public:
    ${name}_error(${name}_status given, const std::string &what)
        : std::runtime_error("$name: " + what), status(given) {}
    ${name}_status status;
};

// The numbers of an array, in row-major order.
template <class T>
class ${name}_span {
public:
    ${name}_span(T *data, std::size_t size) : data_(data), size_(size) {}
    T *data() const { return data_; }
    std::size_t size() const { return size_; }
    T *begin() const { return data_; }
    T *end() const { return data_ + size_; }
    T &operator[](std::size_t i) const { return data_[i]; }

private:
    T *data_;
    std::size_t size_;
};

// The function with memory of its own for inputs, outputs and temporaries: one thread's. It moves,
// and isn't copied. Only the constructor and set_size allocate.
class ${name}_function {
public:
    // weights: $weights_text They have to outlive the function.
    explicit ${name}_function(const void *weights = nullptr, std::size_t weights_bytes = 0)
        : context_(new ${name}_context), arena_(allocated(${name}_arena_bytes())) {
        check(${name}_init(context_.get(), sizeof *context_, weights, weights_bytes));
        allocate();
    }

    // Say what a size with a name is. Inputs have to be given anew.
    void set_size(const std::string &name, std::int64_t size) {
        check(${name}_set_size(context_.get(), name.c_str(), size));
        rows_ = static_cast<std::size_t>(size);
        allocate();
    }

    // Compute the outputs from the inputs.
    void run() {
        check(${name}_run(context_.get(), input_places_.data(), output_places_.data(),
                          arena_.get(), ${name}_arena_bytes()));
    }

    // An input or output, by its number or name. T is the type of its dtype: float of "float32",
    // std::uint8_t of "uint8"; unsigned char is any one's bytes, as of "bfloat16".
    template <class T, class Key>
    ${name}_span<T> input(const Key &key) {
        std::size_t i = index(${name}_input, "input", key);
        return spanned<T>(*${name}_input(i), inputs_[i].get());
    }
    template <class T, class Key>
    ${name}_span<const T> output(const Key &key) const {
        std::size_t i = index(${name}_output, "output", key);
        return spanned<const T>(*${name}_output(i), outputs_[i].get());
    }

    // Give an output's numbers to an input, as a state that goes round. They are of one type.
    template <class From, class To>
    void feed(const From &output, const To &input) {
        std::size_t from = index(${name}_output, "output", output);
        std::size_t to = index(${name}_input, "input", input);
        const ${name}_tensor &y = *${name}_output(from), &x = *${name}_input(to);
        if (bytes_of(x) != bytes_of(y) || std::string_view(x.dtype) != y.dtype)
            throw ${name}_error(${name}_bad_argument,
                                std::string(x.name) + " is of another type than " + y.name);
        outputs_[from].swap(inputs_[to]);
        input_places_[to] = inputs_[to].get();
        output_places_[from] = outputs_[from].get();
    }

private:
    struct release {
        void operator()(unsigned char *data) const {
            ::operator delete[](data, std::align_val_t{64});
        }
    };
    using memory = std::unique_ptr<unsigned char[], release>;
    using described = const ${name}_tensor *(*)(std::size_t);

    void allocate() {
        inputs_.clear(), outputs_.clear(), input_places_.clear(), output_places_.clear();
        for (std::size_t i = 0; const ${name}_tensor *each = ${name}_input(i); ++i)
            inputs_.push_back(allocated(bytes_of(*each)));
        for (std::size_t i = 0; const ${name}_tensor *each = ${name}_output(i); ++i)
            outputs_.push_back(allocated(bytes_of(*each)));
        for (auto &each : inputs_) input_places_.push_back(each.get());
        for (auto &each : outputs_) output_places_.push_back(each.get());
    }

    std::size_t bytes_of(const ${name}_tensor &tensor) const {
        return tensor.rank > 0 && tensor.dims[0] < 0 ? tensor.bytes * rows_ : tensor.bytes;
    }

    static memory allocated(std::size_t bytes) {
        void *data = ::operator new[](bytes + 1, std::align_val_t{64});
        return memory(new (data) unsigned char[bytes + 1]());
    }

    void check(${name}_status status) const {
        if (status == ${name}_ok) return;
        std::string text = ${name}_message(context_.get());
        text.erase(0, text.find(": ") == std::string::npos ? 0 : text.find(": ") + 2);
        throw ${name}_error(status, text);
    }

    static std::size_t index(described tensors, const char *side, std::string_view name) {
        for (std::size_t i = 0; const ${name}_tensor *each = tensors(i); ++i)
            if (name == each->name) return i;
        throw ${name}_error(${name}_bad_argument,
                            "there is no " + std::string(side) + " " + std::string(name));
    }
    template <class I, std::enable_if_t<std::is_integral_v<I>, int> = 0>
    static std::size_t index(described tensors, const char *side, I i) {
        if (tensors(static_cast<std::size_t>(i)) != nullptr) return static_cast<std::size_t>(i);
        throw ${name}_error(${name}_bad_argument,
                            "there is no " + std::string(side) + " " + std::to_string(i));
    }

    template <class T>
    static std::string dtype_of() {
        std::string bits = std::to_string(8 * sizeof(T));
        if (std::is_same_v<T, bool>) return "bool";
        if (std::is_floating_point_v<T>) return "float" + bits;
        if (std::is_integral_v<T>) return (std::is_signed_v<T> ? "int" : "uint") + bits;
        return "complex" + bits;
    }

    template <class T>
    ${name}_span<T> spanned(const ${name}_tensor &tensor, unsigned char *data) const {
        using plain = std::remove_const_t<T>;
        static_assert(std::is_arithmetic_v<plain> || std::is_same_v<plain, std::complex<float>> ||
                          std::is_same_v<plain, std::complex<double>>,
                      "numbers, or std::complex<float> and <double>");
        std::string given = dtype_of<plain>();
        if (given != tensor.dtype && !std::is_same_v<plain, unsigned char>)
            throw ${name}_error(${name}_bad_argument, std::string(tensor.name) + " is of " +
                                                          tensor.dtype + ", not of " + given);
        return {reinterpret_cast<T *>(data), bytes_of(tensor) / sizeof(T)};
    }

    std::size_t rows_ = 0;
    std::unique_ptr<${name}_context> context_;
    memory arena_;
    std::vector<memory> inputs_, outputs_;
    std::vector<const void *> input_places_;
    std::vector<void *> output_places_;
};

#endif
