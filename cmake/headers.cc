// What a precompiled header is compiled with (withy_precompiled in cmake/withy.cmake).
