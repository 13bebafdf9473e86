// A C++ program outside the tree: says the version, and meets an error the way users do.
#include <ckptengine/engine.hpp>
#include <cstdio>
#include <string>

int main() {
  try {
    const ckpt::Engine engine(ckpt::Options().set("no_such_option", "1"));
  } catch (const ckpt::Error& error) {
    if (error.status() != CKPT_ERR_INVALID || std::string(error.what()).find("no_such_option") == std::string::npos) {
      std::fprintf(stderr, "an unknown option gave status %d: %s\n", static_cast<int>(error.status()), error.what());
      return 1;
    }
    std::printf("ckptengine %s\n", ckpt_version());
    return 0;
  }
  std::fprintf(stderr, "an unknown option was accepted\n");
  return 1;
}
