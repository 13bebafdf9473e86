// The text of `ckptctl --version`: the versions that programs of one job must share, or that old data may have.
#pragma once

#include <string>
#include <string_view>

namespace ckpt::cli {

// One `NAME VERSION` per line. The library's comes first.
std::string versions_text(std::string_view library);

}  // namespace ckpt::cli
