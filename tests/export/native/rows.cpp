// Runs a library of any number of rows on inputs from files, by its C++ header.

#include <fstream>
#include <iostream>

#include "net.hpp"

int main(int argc, char **argv) {
    if (argc < 2) return 1;
    const std::string folder = argv[1];
    net_function f;
    for (const char *faulty : {"n", "b"}) {
        try {
            f.set_size(faulty, 0);
        } catch (const net_error &error) {
            std::cout << error.what() << "\n";
        }
    }
    try {
        f.run();
    } catch (const net_error &error) {
        std::cout << error.what() << "\n";
    }
    for (std::int64_t rows : {3, 71, 73, 1, 200}) {
        f.set_size("b", rows);
        auto x = f.input<float>("x");
        std::ifstream(folder + "/x.bin", std::ios::binary)
            .read(reinterpret_cast<char *>(x.data()),
                  static_cast<std::streamsize>(x.size() * sizeof(float)));
        f.input<float>("scale")[0] = 2;
        f.run();
        for (std::size_t i = 0; i < NET_NUM_OUTPUTS; ++i) {
            auto bytes = f.output<unsigned char>(i);
            std::ofstream(folder + "/" + std::to_string(rows) + "_" + std::to_string(i) + ".bin",
                          std::ios::binary)
                .write(reinterpret_cast<const char *>(bytes.data()),
                       static_cast<std::streamsize>(bytes.size()));
        }
    }
    try {
        f.set_size("b", 301);
    } catch (const net_error &error) {
        std::cout << error.what() << "\n";
    }
}
