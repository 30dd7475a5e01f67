# find_package($name PATHS <this folder>), then target_link_libraries(<yours> $name::$name)
add_library($name::$name $cmake_kind IMPORTED)
set_target_properties($name::$name PROPERTIES
    IMPORTED_LOCATION "$${CMAKE_CURRENT_LIST_DIR}/$file"
    INTERFACE_INCLUDE_DIRECTORIES "$${CMAKE_CURRENT_LIST_DIR}"
    INTERFACE_LINK_LIBRARIES "m")
