// Writes the text of `ckptctl --version`: the versions of the library and of all formats that programs of one job
// share.
#pragma once

#include <string>
#include <string_view>

namespace ckpt::cli {

// One `NAME VERSION` per line. The library's comes first.
std::string versions_text(std::string_view library);

}  // namespace ckpt::cli
