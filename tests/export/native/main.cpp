// Runs a library through its C++ header on inputs from files, and writes the outputs; and what it
// says of faults.

#include <cstdio>
#include <fstream>
#include <iostream>
#include <string>
#include <utility>

#include "net.hpp"

static_assert(!std::is_copy_constructible_v<net_function>);
static_assert(std::is_nothrow_move_constructible_v<net_function>);

template <class Action>
static void failing(Action action) {
    try {
        action();
    } catch (const net_error &error) {
        std::cout << error.status << " " << error.what() << "\n";
    }
}

int main(int argc, char **argv) {
    if (argc < 2) return 1;
    const std::string folder = argv[1];
    net_function first;
    std::ifstream(folder + "/in0.bin", std::ios::binary)
        .read(reinterpret_cast<char *>(first.input<float>("x").data()),
              static_cast<std::streamsize>(net_input(0)->bytes));
    std::ifstream(folder + "/in1.bin", std::ios::binary)
        .read(reinterpret_cast<char *>(first.input<std::int32_t>(1).data()),
              static_cast<std::streamsize>(net_input(1)->bytes));
    net_function f = std::move(first);
    f.run();
    for (std::size_t i = 0; i < NET_NUM_OUTPUTS; ++i) {
        auto bytes = f.output<unsigned char>(i);
        std::ofstream(folder + "/out0_" + std::to_string(i) + ".bin", std::ios::binary)
            .write(reinterpret_cast<const char *>(bytes.data()),
                   static_cast<std::streamsize>(bytes.size()));
    }
    f.feed(0, "x");
    f.run();
    float sum = 0;
    for (float each : f.output<float>("output0")) sum += each;
    std::cout << sum << "\n";
    failing([&] { f.input<float>("y"); });
    failing([&] { f.output<float>(7); });
    failing([&] { f.input<double>("x"); });
    failing([&] { f.feed(1, "x"); });
    failing([&] { net_function other(&sum, sizeof sum); });
}
