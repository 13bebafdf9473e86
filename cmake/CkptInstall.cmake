# Install rules, find_package(ckptengine) and pkg-config.
