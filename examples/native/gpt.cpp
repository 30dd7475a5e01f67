// Writes text by the library that native_gpt.py makes: gpt <seed> <characters>.

#include <cstdint>
#include <iostream>
#include <string>
#include <vector>

#include "gpt.hpp"

static std::string utf8(std::int32_t c) {
    auto byte = [](int bits) { return static_cast<char>(bits); };
    if (c < 0x80) return {byte(c)};
    if (c < 0x800) return {byte(0xc0 | c >> 6), byte(0x80 | (c & 63))};
    return {byte(0xe0 | c >> 12), byte(0x80 | (c >> 6 & 63)), byte(0x80 | (c & 63))};
}

int main(int argc, char **argv) try {
    const int seed = argc > 1 ? std::stoi(argv[1]) : 0;
    const std::size_t length = argc > 2 ? std::stoul(argv[2]) : 400;
    gpt_function step;
    const auto context = static_cast<std::size_t>(gpt_input(0)->dims[2]);
    std::vector<std::int32_t> text = {'\n'};
    for (std::size_t begin = 0, fed = 0; text.size() <= length;) {
        // When the cache is full, it goes on from the second half of what it has seen.
        if (fed - begin == context) fed = begin = text.size() - context / 2;
        step.input<std::int32_t>("character")[0] = text[fed];
        step.input<std::int32_t>("position")[0] = static_cast<std::int32_t>(fed - begin);
        step.input<std::int32_t>("seed")[0] = seed + static_cast<std::int32_t>(fed);
        step.run();
        step.feed(0, "cache");
        if (++fed == text.size()) {
            text.push_back(step.output<std::int32_t>(1)[0]);
            std::cout << utf8(text.back());
        }
    }
    std::cout << "\n";
} catch (const std::exception &error) {
    std::cerr << error.what() << "\n";
    return 1;
}
